"""Runs the project's benchmarks: ``make bench``, or ``python -m bench [--only NAME …]``.

A bench is a function of a module of this package::

    from bench.registry import Result, bench

    @bench
    def receive_without_filters() -> Iterator[Result]:
        yield Result("receive, no filters", messages / seconds, "messages/s", target=50_000)

* One module per subject (``bench/sds.py`` → ``build/bench/sds.json``, a list of ``{name, value, unit, target, met}``).
* A result has a value, its unit and, if an issue sets one, a target; ``lower_is_better=True`` reverses the comparison
  (latencies). A missed target is shown as missed and does not fail the run; an exception does.
* ``bench.registry.best_of`` measures a callable: the best of several repetitions, since the machine is shared.
* ``bench.registry.memory_copy`` is the same run's MB/s of copying memory: report ratios to it, which are comparable
  between machines, unlike absolute figures.
* Import heavy packages (Spark, Kafka) inside the function, so that ``--only codecs`` does not load them.
"""
