// Light, dark or as the system says; motion or not. Colours for canvases come from the style sheet.

const listeners = new Set();
const root = document.documentElement;
const darkness = matchMedia("(prefers-color-scheme: dark)");
const stillness = matchMedia("(prefers-reduced-motion: reduce)");
let palette = null;

/** Calls back when colours or motion change. */
export function onLook(callback) {
  listeners.add(callback);
}

function changed() {
  palette = null;
  for (const callback of listeners) callback();
}

/** The colour of a custom property, as the canvas understands it. */
export function colour(name) {
  palette ??= new Map();
  if (!palette.has(name)) {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    palette.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return palette.get(name);
}

export const isStill = () => root.dataset.motion === "off" || (stillness.matches && root.dataset.motion !== "on");

function remembered(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // A browser without storage forgets the choice.
  }
}

function show(button, label, text) {
  button.textContent = text;
  button.setAttribute("aria-label", label);
  button.title = label;
}

export function startTheme(themeButton, motionButton) {
  const themes = ["auto", "light", "dark"];
  const setTheme = (theme) => {
    root.dataset.theme = theme;
    show(themeButton, `Colours: ${theme}. Press to change`, { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[theme]);
    changed();
  };
  const setMotion = (motion) => {
    if (motion) root.dataset.motion = motion;
    const still = isStill();
    motionButton.setAttribute("aria-pressed", String(!still));
    show(motionButton, still ? "Motion is off. Press to turn it on" : "Motion is on. Press to turn it off", still ? "▷ Motion" : "❚❚ Motion");
    changed();
  };
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    remember("baton-theme", next);
    setTheme(next);
  });
  motionButton.addEventListener("click", () => {
    const next = isStill() ? "on" : "off";
    remember("baton-motion", next);
    setMotion(next);
  });
  darkness.addEventListener("change", changed);
  stillness.addEventListener("change", () => setMotion(root.dataset.motion));
  const saved = remembered("baton-theme");
  setTheme(themes.includes(saved) ? saved : "auto");
  setMotion(remembered("baton-motion"));
}
