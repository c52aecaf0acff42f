// Forms on the API pages that send requests: as the user who has signed in at the console, or anonymously.

const MAX_SHOWN = 200_000; // characters: what a browser lays out in a moment
const SIGN_IN = "/console";
const texts = document.getElementById("try-it-texts")?.dataset;

// The session of the console: {identity, csrf}, or null. `csrf` proves to the API that a page of this server asks.
// Every page of the console has both, for its button to sign out.
async function getSession() {
  try {
    const response = await fetch(SIGN_IN, { credentials: "same-origin", headers: { Accept: "text/html" } });
    const me = new DOMParser().parseFromString(await response.text(), "text/html").querySelector(".me");
    const csrf = me?.querySelector("input[name=csrf]")?.value;
    return csrf ? { identity: me.querySelector(".name").textContent, csrf } : null;
  } catch {
    return null;
  }
}

function element(name, content, properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...[content].flat());
  return made;
}

function getValues(field) {
  return ("repeats" in field.dataset ? field.value.split(/\s+/) : [field.value]).filter(Boolean);
}

function buildRequest(form, session) {
  const { method } = form.dataset;
  const query = new URLSearchParams();
  let path = form.dataset.path;
  for (const field of form.querySelectorAll("[data-in]")) {
    if (field.dataset.in === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(field.value));
    else for (const value of getValues(field)) query.append(field.name, value);
  }
  // The header keeps the browser from asking for a password itself.
  const headers = { "X-Requested-With": "XMLHttpRequest" };
  if (session) headers["X-CSRF-Token"] = session.csrf;
  const options = { method, headers, credentials: session ? "same-origin" : "omit", cache: "no-store" };
  if (form.elements.body) {
    options.body = form.elements.body.value;
    headers["Content-Type"] = "application/json";
  } else if (form.elements.file) {
    [options.body] = form.elements.file.files;
    headers["Content-Type"] = "application/octet-stream";
  }
  return [query.size ? `${path}?${query}` : path, options];
}

// Read a response as text while it arrives: a stream of events may last as long as its job.
async function readText(response, show) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    if (text.length > MAX_SHOWN) {
      reader.cancel();
      return [text.slice(0, MAX_SHOWN), true];
    }
    show(text);
  }
  return [text, false];
}

function format(text, type) {
  if (!/[/+]json\b/.test(type)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function send(form, session) {
  const result = form.querySelector(".result");
  const [status, pre] = result.children;
  result.hidden = false;
  pre.hidden = true;
  status.replaceChildren(texts.sending);
  try {
    const [address, options] = buildRequest(form, session);
    const response = await fetch(address, options);
    const type = response.headers.get("Content-Type") ?? "";
    const show = (text) => (pre.firstChild.textContent = text);
    const label = `${response.status} ${response.statusText}`;
    status.replaceChildren(element("span", label, { className: `badge ${response.ok ? "ok" : "bad"}` }), ` ${type}`);
    show("");
    pre.hidden = false;
    if (type.startsWith("image/png")) {
      show(`${texts.binary} ${(await response.arrayBuffer()).byteLength}`);
      return;
    }
    const [text, isShortened] = await readText(response, show);
    show(isShortened ? text : format(text, type));
    if (isShortened) status.append(`. ${texts.shortened}`);
  } catch {
    status.replaceChildren(element("span", texts.failed, { className: "error" }));
  }
}

function isValid(form) {
  const body = form.elements.body;
  if (!body) return true;
  let problem = "";
  try {
    JSON.parse(body.value);
  } catch {
    problem = texts.invalid;
  }
  body.setCustomValidity(problem);
  return form.reportValidity();
}

function showSession(form, session) {
  const note = form.querySelector(".session");
  const isRefused = !session && "identity" in form.dataset;
  form.querySelector("button").hidden = isRefused;
  if (session) note.replaceChildren(`${texts.signedIn} `, element("strong", session.identity));
  else note.replaceChildren(`${isRefused ? texts.required : texts.anonymous} `, element("a", texts.signIn, { href: SIGN_IN }));
}

let session;
for (const details of document.querySelectorAll("details.try")) {
  const form = details.querySelector("form");
  details.hidden = false;
  details.addEventListener("toggle", async () => {
    session ??= getSession();
    showSession(form, await session);
  });
  form.elements.body?.addEventListener("input", () => form.elements.body.setCustomValidity(""));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (isValid(form)) await send(form, await session);
  });
}
