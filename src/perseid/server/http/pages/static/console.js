// Forms of the console: more rows for values, and checks while the user types. Everything works without it.

const PAUSE = 400; // milliseconds without a key before a check

function addRowButton(rows) {
  // Without a script there are empty rows to write in; with one the button adds them, as copies of the last.
  const all = [...rows.querySelectorAll("[data-row]")];
  const empty = all.filter(isEmpty);
  const template = empty[empty.length - 1];
  const button = document.createElement("button");
  button.type = "button";
  button.className = "second";
  button.textContent = rows.dataset.add;
  let number = Math.max(...all.map(getNumber));
  button.addEventListener("click", () => {
    const copy = template.cloneNode(true);
    number += 1;
    for (const each of copy.querySelectorAll("[name], [id], [for]")) {
      for (const [attribute, separator] of [["name", "."], ["id", "-"], ["for", "-"]]) {
        const value = each.getAttribute(attribute);
        if (value) each.setAttribute(attribute, value.replace(/\d+$/, "") && `${value.split(separator)[0]}${separator}${number}`);
      }
    }
    rows.append(copy);
    copy.querySelector("input:not([type=hidden])").focus();
  });
  rows.after(button);
  for (const each of empty.length < all.length ? empty : empty.slice(0, -1)) each.remove();
}

function getNumber(row) {
  return Number(row.querySelector("[name^='type.']").name.split(".")[1]);
}

function isEmpty(row) {
  return [...row.querySelectorAll("input:not([type=hidden]), textarea")].every(each => !each.value || each.type === "checkbox");
}

function watch(form) {
  const result = form.querySelector("[data-result]");
  let timer = 0;
  let latest = 0;
  const check = async () => {
    const turn = ++latest;
    if (form.elements.prefix?.value === "") return result.replaceChildren(); // not chosen yet, which is no mistake
    const response = await fetch(form.dataset.check, {
      method: "POST",
      body: new URLSearchParams(new FormData(form)),
      headers: { Accept: "text/html" },
    });
    if (response.redirected || !response.ok) return; // the session has ended: the form says so when it is sent
    const text = await response.text();
    if (turn === latest) result.replaceChildren(...parse(text));
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => check().catch(() => result.replaceChildren()), PAUSE);
  });
}

function parse(text) {
  return new DOMParser().parseFromString(text, "text/html").body.childNodes;
}

for (const rows of document.querySelectorAll("[data-rows]")) addRowButton(rows);
for (const form of document.querySelectorAll("form[data-check]")) watch(form);
