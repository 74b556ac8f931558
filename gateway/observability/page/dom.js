// Makes and updates elements. Text always enters as text: this page never turns a string into markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties (`class`, `text`, `on…`, attributes) and children. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Sets the text only when it differs, so that an idle page paints nothing. */
export function setText(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** One child of `parent` for each item, in their order; children of items that are gone are removed. */
export function keyed(parent, items, key, make, update) {
  const known = (parent.keyed ??= new Map());
  const keep = new Set();
  let before = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    keep.add(name);
    let child = known.get(name);
    if (!child) known.set(name, (child = make(item)));
    if (child !== before) parent.insertBefore(child, before);
    else before = before.nextElementSibling;
    update(child, item);
  }
  for (const [name, child] of known) {
    if (!keep.has(name)) {
      child.remove();
      known.delete(name);
    }
  }
}

/** Arrow keys move the focus among the elements that match `selector`; only one of them is a stop of the Tab key. */
export function roving(container, selector) {
  const items = () => [...container.querySelectorAll(selector)].filter((item) => !item.closest("[hidden]"));
  const focus = (item) => {
    for (const other of items()) other.tabIndex = other === item ? 0 : -1;
    item.focus();
  };
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) for (const other of items()) other.tabIndex = other === item ? 0 : -1;
  });
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(event.target.closest(selector));
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    if (step) focus(all[Math.min(all.length - 1, Math.max(0, at + step))]);
    else if (event.key === "Home") focus(all[0]);
    else if (event.key === "End") focus(all[all.length - 1]);
    else return;
    event.preventDefault();
  });
  return () => {
    if (container.querySelector(`:is(${selector})[tabindex="0"]`)) return;
    const [first] = items();
    if (first) first.tabIndex = 0;
  };
}
