// Makes the pictures of a page answer: what a mark says, where it leads, and zoom. Without it they are plain pictures.
(() => {
  "use strict";
  const LARGEST = 12;
  const MOST_STOPS = 40; // links of one picture that are reached with the keyboard
  const views = new Map(); // how each picture is zoomed, also when its part of the page is replaced

  function element(name, properties) {
    return Object.assign(document.createElement(name), properties);
  }

  // A box in the units of the picture: x, y, width, height.
  function show(drawn, whole, view) {
    view.width = Math.min(whole.width, Math.max(whole.width / LARGEST, view.width));
    view.height = (view.width * whole.height) / whole.width;
    view.x = Math.min(whole.width - view.width, Math.max(0, view.x));
    view.y = Math.min(whole.height - view.height, Math.max(0, view.y));
    drawn.setAttribute("viewBox", [view.x, view.y, view.width, view.height].join(" "));
    drawn.classList.toggle("zoomed", view.width < whole.width);
  }

  function zoomed(drawn, whole, view, by, x, y) {
    const width = view.width;
    view.width = width / by;
    view.width = Math.min(whole.width, Math.max(whole.width / LARGEST, view.width));
    const kept = view.width / width;
    view.x += (x - view.x) * (1 - kept);
    view.y += (y - view.y) * (1 - kept);
    show(drawn, whole, view);
  }

  function place(drawn, view, event) {
    const box = drawn.getBoundingClientRect();
    return [
      view.x + ((event.clientX - box.left) / box.width) * view.width,
      view.y + ((event.clientY - box.top) / box.height) * view.height,
    ];
  }

  function buttons(drawn, whole, view) {
    const bar = element("div", { className: "chart-tools" });
    const steps = [
      ["+", "Zoom in", () => zoomed(drawn, whole, view, 1.5, view.x + view.width / 2, view.y + view.height / 2)],
      ["−", "Zoom out", () => zoomed(drawn, whole, view, 1 / 1.5, view.x + view.width / 2, view.y + view.height / 2)],
      ["Whole", "Show the whole picture", () => show(drawn, whole, Object.assign(view, whole))],
    ];
    for (const [text, label, act] of steps) {
      const button = element("button", { type: "button", textContent: text, title: label });
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
      bar.append(button);
    }
    return bar;
  }

  function moves(drawn, whole, view) {
    let from = null;
    drawn.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      zoomed(drawn, whole, view, event.deltaY < 0 ? 1.2 : 1 / 1.2, ...place(drawn, view, event));
    }, { passive: false });
    drawn.addEventListener("dblclick", (event) => zoomed(drawn, whole, view, 2, ...place(drawn, view, event)));
    drawn.addEventListener("pointerdown", (event) => {
      if (view.width < whole.width && !event.target.closest("a")) from = place(drawn, view, event);
    });
    drawn.addEventListener("pointermove", (event) => {
      if (!from) return;
      const [x, y] = place(drawn, view, event);
      view.x += from[0] - x;
      view.y += from[1] - y;
      show(drawn, whole, view);
    });
    for (const end of ["pointerup", "pointerleave"]) drawn.addEventListener(end, () => (from = null));
  }

  // What a mark says stands beside the pointer, or beside the mark that has the focus.
  function hover(drawn, box) {
    const tip = element("div", { className: "tip", hidden: true });
    const words = new Map();
    for (const title of drawn.querySelectorAll("title")) {
      words.set(title.parentElement, title.textContent);
      title.remove(); // or the browser says it as well
    }
    const say = (target, x, y) => {
      const text = words.get(target);
      tip.hidden = text === undefined;
      if (tip.hidden) return;
      tip.textContent = text;
      const around = box.getBoundingClientRect();
      tip.style.left = Math.max(0, Math.min(x - around.left + 12, around.width - tip.offsetWidth - 4)) + "px";
      tip.style.top = Math.max(0, y - around.top - tip.offsetHeight - 8) + "px";
    };
    drawn.addEventListener("pointermove", (event) => say(event.target, event.clientX, event.clientY));
    drawn.addEventListener("pointerleave", () => (tip.hidden = true));
    drawn.addEventListener("focusin", (event) => {
      const mark = event.target.firstElementChild;
      if (mark) say(mark, mark.getBoundingClientRect().right, mark.getBoundingClientRect().top);
    });
    drawn.addEventListener("focusout", () => (tip.hidden = true));
    box.append(tip);
    const links = [...drawn.querySelectorAll("a")];
    for (const link of links) {
      link.setAttribute("aria-label", words.get(link.firstElementChild) || "Open");
      if (links.length > MOST_STOPS) link.setAttribute("tabindex", "-1"); // the table below says the same
    }
  }

  async function answer(figure) {
    const image = figure.querySelector("picture img");
    const source = image && image.currentSrc;
    if (!source || figure.dataset.answers === source) return;
    figure.dataset.answers = source;
    const got = await fetch(source);
    if (!got.ok) return;
    const read = new DOMParser().parseFromString(await got.text(), "image/svg+xml").documentElement;
    if (read.nodeName !== "svg" || figure.dataset.answers !== source || !figure.isConnected) return;
    const drawn = document.importNode(read, true);
    const whole = { x: 0, y: 0, width: drawn.viewBox.baseVal.width, height: drawn.viewBox.baseVal.height };
    const name = new URL(source).pathname + new URL(source).searchParams.get("width");
    if (!views.has(name)) views.set(name, { ...whole });
    const view = views.get(name);
    drawn.setAttribute("role", "group");
    drawn.setAttribute("aria-label", image.alt);
    const box = element("div", { className: "chart-live" });
    box.dataset.added = "";
    hover(drawn, box);
    moves(drawn, whole, view);
    show(drawn, whole, view);
    box.prepend(drawn);
    box.append(buttons(drawn, whole, view));
    for (const before of figure.querySelectorAll("[data-added]")) before.remove();
    image.parentElement.before(box);
  }

  function all() {
    for (const figure of document.querySelectorAll("figure.chart")) {
      const image = figure.querySelector("picture img");
      if (!image) continue;
      image.addEventListener("load", () => answer(figure)); // another theme or width is another picture
      if (image.complete) answer(figure).catch(() => undefined);
    }
  }

  all();
  document.addEventListener("renewed", all);
})();
