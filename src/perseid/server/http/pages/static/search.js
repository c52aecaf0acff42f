// Suggests handles while the reader types: a combobox as in the ARIA practices. Without it, the field is plain.
const input = document.getElementById("hdl");
const list = Object.assign(document.createElement("ul"), { id: "hdl-list", hidden: true });
list.setAttribute("role", "listbox");
list.setAttribute("aria-label", input.parentElement.dataset.label);
for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"],
                             ["aria-controls", list.id]]) input.setAttribute(name, value);
input.after(list);
let chosen = -1, timer = 0, latest = 0;

function show(handles) {
  chosen = -1;
  list.replaceChildren(...handles.map((handle, number) => {
    const item = Object.assign(document.createElement("li"), { id: `hdl-${number}`, textContent: handle });
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", "false");
    item.addEventListener("mousedown", event => { event.preventDefault(); take(handle); });
    return item;
  }));
  list.hidden = handles.length === 0;
  input.setAttribute("aria-expanded", String(!list.hidden));
  input.removeAttribute("aria-activedescendant");
}

function take(handle) {
  input.value = handle;
  show([]);
}

function move(step) {
  const items = [...list.children];
  chosen = (chosen + step + items.length + (chosen < 0 && step < 0 ? 1 : 0)) % items.length;
  items.forEach((item, number) => item.setAttribute("aria-selected", String(number === chosen)));
  input.setAttribute("aria-activedescendant", items[chosen].id);
}

async function ask() {
  const number = ++latest, typed = input.value.trim();
  if (!typed.includes("/")) return show([]);
  try {
    const response = await fetch(`/suggest?q=${encodeURIComponent(typed)}`);
    const found = response.ok ? (await response.json()).suggestions : [];
    if (number === latest) show(found.filter(handle => handle !== typed));
  } catch {
    show([]);
  }
}

input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 150); });
input.addEventListener("blur", () => { clearTimeout(timer); latest++; show([]); });
input.addEventListener("keydown", event => {
  if (list.hidden) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); move(event.key === "ArrowDown" ? 1 : -1); }
  if (event.key === "Escape") show([]);
  if (event.key === "Enter" && chosen >= 0) { event.preventDefault(); take(list.children[chosen].textContent); }
});
