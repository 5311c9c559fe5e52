// Keeps a page current: asks for it again with its entity tag, and replaces the parts that changed. Nothing else.
(() => {
  "use strict";
  const body = document.body;
  const every = Number(body.dataset.refreshMs);
  const state = document.getElementById("live-state");
  const said = document.getElementById("live-said");
  const pause = document.getElementById("live-pause");
  const main = document.getElementById("main");
  const FOCUSABLE = "a[href], button, input, summary, [tabindex]";
  const QUIET_MS = 30000; // between two announcements of new data
  const LONGEST_MS = 60000;
  const STILL_MS = 120000;
  const SILENT_MS = 300000;
  let tag = body.dataset.tag;
  let paused = false;
  let busy = false;
  let failures = 0;
  let announced = -QUIET_MS;

  function show(connection, text) {
    body.dataset.connection = connection;
    if (state) state.textContent = text;
  }

  const ago = (ms) => {
    const s = Math.max(0, Math.round(ms / 1000));
    if (s < 120) return s + " s";
    return s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " days";
  };

  // The dot is green while the pipeline writes: that this page is answered says nothing about it.
  function alive() {
    if (paused || failures) return;
    const now = Date.now();
    const age = (time) => now - Date.parse(time.dateTime);
    const clock = document.querySelector("[data-newest]");
    const jobs = [...document.querySelectorAll("time[data-job]")];
    for (const time of [...jobs, ...document.querySelectorAll("time[data-judged]")]) time.dataset.age = ago(age(time));
    if (!clock) {
      show("live", "Live");
      return;
    }
    const still = now - Date.parse(clock.dataset.newest);
    const silent = jobs.find((time) => age(time) > SILENT_MS);
    if (still > STILL_MS) show("still", "No data for " + ago(still));
    else if (silent) show("still", silent.dataset.job + " silent for " + ago(age(silent)));
    else show("live", "Last data " + ago(still) + " ago");
  }

  function say(text) {
    if (said) said.textContent = text;
  }

  // What has the focus, so that it can be given back to the same thing in new markup.
  function focusIn(part) {
    const active = document.activeElement;
    if (!active || !part.contains(active)) return null;
    const index = [...part.querySelectorAll(FOCUSABLE)].indexOf(active);
    return { id: active.id, href: active.getAttribute("href"), index };
  }

  function giveFocus(part, kept) {
    const all = [...part.querySelectorAll(FOCUSABLE)];
    const again =
      (kept.id && all.find((e) => e.id === kept.id)) ||
      (kept.href && all.find((e) => e.getAttribute("href") === kept.href)) ||
      all[kept.index] ||
      main;
    again.focus({ preventScroll: true });
  }

  // New pictures are decoded before they take the place of old ones: nothing flickers.
  async function decoded(part) {
    const waiting = [...part.querySelectorAll("picture")].map((picture) => {
      const source = [...picture.querySelectorAll("source")].find((s) => matchMedia(s.media).matches);
      const image = new Image();
      image.src = source ? source.srcset : picture.querySelector("img").src;
      return image.decode().catch(() => undefined);
    });
    await Promise.race([Promise.all(waiting), new Promise((done) => setTimeout(done, 3000))]);
  }

  async function replace(old, fresh) {
    const copy = document.importNode(fresh, true);
    await decoded(copy);
    for (const open of old.querySelectorAll("details[open][id]")) {
      const same = copy.querySelector("#" + CSS.escape(open.id));
      if (same) same.open = true;
    }
    const scrolled = [...old.querySelectorAll(".scroll")].map((e) => [e.scrollLeft, e.scrollTop]);
    const kept = focusIn(old);
    old.replaceWith(copy);
    [...copy.querySelectorAll(".scroll")].forEach((e, n) => {
      if (scrolled[n]) [e.scrollLeft, e.scrollTop] = scrolled[n];
    });
    if (kept) giveFocus(copy, kept);
  }

  async function renew(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const parts = [...main.querySelectorAll("[data-live][id]")];
    const others = [...fresh.querySelectorAll("main [data-live][id]")];
    const names = (list) => list.map((e) => e.id).join(" ");
    if (names(parts) !== names(others)) {
      location.reload(); // another page altogether, such as the first one with tables
      return;
    }
    const changed = [];
    for (const [n, part] of parts.entries()) {
      const without = (e) => {
        const plain = e.cloneNode(true);
        for (const added of plain.querySelectorAll("[data-added]")) added.remove();
        return plain.outerHTML.replaceAll(" open=\"\"", "").replace(/ data-(age|answers)="[^"]*"/g, "");
      };
      if (without(part) !== without(others[n])) {
        changed.push(part.dataset.live);
        await replace(part, others[n]);
      }
    }
    if (changed.length) document.dispatchEvent(new Event("renewed"));
    if (changed.length && performance.now() - announced >= QUIET_MS) {
      announced = performance.now();
      say("Updated: " + changed.join(", ") + ".");
    }
  }

  async function look() {
    if (busy || paused || document.hidden) return;
    busy = true;
    const slow = setTimeout(() => (body.dataset.loading ||= "refresh"), 400);
    try {
      const answer = await fetch(location.href, { headers: { "If-None-Match": '"' + tag + '"' }, cache: "no-store" });
      if (answer.status === 200) {
        await renew(await answer.text());
        tag = (answer.headers.get("ETag") || "").replaceAll('"', "");
      } else if (answer.status !== 304) {
        throw new Error("status " + answer.status);
      }
      if (failures) say("The dashboard answers again.");
      failures = 0;
      alive();
    } catch {
      failures += 1;
      show("lost", "No answer, trying again");
      if (failures === 1) say("The dashboard does not answer. What is shown may be old; trying again.");
    } finally {
      clearTimeout(slow);
      if (body.dataset.loading === "refresh") delete body.dataset.loading; // a page that is awaited still is
      busy = false;
    }
  }

  function wait() {
    const delay = Math.min(LONGEST_MS, every * 2 ** Math.min(failures, 6));
    setTimeout(() => look().finally(wait), delay);
  }

  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      if (paused) show("paused", "Paused");
      else {
        alive();
        look();
      }
    });
  }
  if (every > 0 && tag) {
    alive();
    setInterval(alive, 1000);
    wait();
    document.addEventListener("visibilitychange", look);
  }

  // Loading: a line at the top from the moment a link is followed until the next page is there.
  document.addEventListener("click", (event) => {
    const copy = event.target.closest("button[data-copy]");
    if (copy) {
      const done = (text) => {
        copy.textContent = text;
        say(text === "Copied" ? "The command was copied." : "The command is selected: press Ctrl-C.");
      };
      const choose = () => {
        getSelection().selectAllChildren(copy.parentElement.querySelector("code"));
        done("Selected");
      };
      if (navigator.clipboard) navigator.clipboard.writeText(copy.dataset.copy).then(() => done("Copied"), choose);
      else choose();
      return;
    }
    const link = event.target.closest("a[href]");
    const plain = !event.defaultPrevented && event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey);
    if (link && plain && link.origin === location.origin && !link.getAttribute("href").startsWith("#")) {
      body.dataset.loading = "page";
    }
  });
  document.addEventListener("submit", () => (body.dataset.loading = "page"));
  window.addEventListener("pageshow", () => delete body.dataset.loading);

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") delete body.dataset.loading; // it stops the browser's loading too
    const typing = event.target.matches("input, textarea, select") || event.target.isContentEditable;
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.getElementById("search").focus();
    }
  });
})();
