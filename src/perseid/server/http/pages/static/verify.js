// Checks the proof of a record: docs/reference/proof-format.md. The rules are those of perseid.proof.verifier.
const text = new TextDecoder("utf-8", { fatal: true });
const bytes = encoded => Uint8Array.from(atob(encoded), each => each.charCodeAt(0));
const hex = data => [...data].map(each => each.toString(16).padStart(2, "0")).join("");
const join = (...parts) => Uint8Array.from(parts.flatMap(part => [...part]));
const sha256 = async data => new Uint8Array(await crypto.subtle.digest("SHA-256", data));
const require = (condition, problem) => { if (!condition) throw new Error(problem); };

function parseLeaf(data) {
  const view = new DataView(data.buffer);
  const seq = Number(view.getBigInt64(1)), at = Number(view.getBigInt64(9)), length = view.getInt32(20);
  const handle = text.decode(data.subarray(24, 24 + length));
  const start = 24 + length + 16 + 64, count = view.getInt32(start);
  require(view.getUint8(0) === 1 && count >= 0 && start + 4 + 32 * count === data.length, "the leaf is malformed");
  const values = [];
  for (let at_ = start + 4; at_ < data.length; at_ += 32) values.push(hex(data.subarray(at_, at_ + 32)));
  return { seq, at, handle, values };
}

async function rootOf(leaf, index, size, path) {
  let hash = await sha256(join([0], leaf)), position = index, last = size - 1;
  for (const sibling of path.map(bytes)) {
    require(last > 0, "the path is too long");
    const isLeft = position % 2 === 1 || position === last;
    hash = await sha256(isLeft ? join([1], sibling, hash) : join([1], hash, sibling));
    while (isLeft && position && position % 2 === 0) { position = Math.floor(position / 2); last = Math.floor(last / 2); }
    position = Math.floor(position / 2);
    last = Math.floor(last / 2);
  }
  require(last === 0, "the path is too short");
  return hash;
}

async function isSigned(note, key) {
  // The key is NAME+ID+BASE64 of 01 and an Ed25519 key. Returns null if this browser cannot check.
  const [, name, encoded] = key.match(/^([^+]+)\+[^+]+\+(.*)$/);
  const end = note.indexOf("\n\n") + 1;
  const line = note.slice(end + 1).split("\n").find(each => each.startsWith(`\u2014 ${name} `));
  require(line, "the checkpoint is not signed by this ledger");
  const signature = bytes(line.slice(line.lastIndexOf(" ") + 1)).slice(4);
  let imported;
  try {
    imported = await crypto.subtle.importKey("raw", bytes(encoded).slice(1), "Ed25519", false, ["verify"]);
  } catch {
    return null;
  }
  return crypto.subtle.verify("Ed25519", imported, signature, new TextEncoder().encode(note.slice(0, end)));
}

async function check(proof, key) {
  const leaf = bytes(proof.entry.leaf), parsed = parseLeaf(leaf);
  require(proof.format === "perseid proof 1", "the format is unknown");
  require(parsed.seq === proof.seq && parsed.handle === proof.handle, "the leaf is of another entry");
  const [, size, root] = proof.checkpoint.split("\n");
  require(parsed.seq <= Number(size), "the checkpoint is older than the entry");
  const found = await rootOf(leaf, parsed.seq - 1, Number(size), proof.entry.path);
  require(hex(found) === hex(bytes(root)), "the path does not lead to the root of the checkpoint");
  const indexes = [];
  for (const value of proof.values) {
    const content = bytes(value.content), commitment = await sha256(join([86], bytes(value.salt), content));
    require(parsed.values.includes(hex(commitment)), "a value is not the one that was recorded");
    indexes.push(new DataView(content.buffer).getInt32(0));
  }
  const signed = await isSigned(proof.checkpoint, key);
  require(signed !== false, "the signature of the checkpoint is wrong");
  return { ...parsed, size: Number(size), indexes, signed };
}

async function get(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" } });
  if (!response.ok) throw new TypeError(response.status);
  return response.json();
}

function say(area, status, kind, sentences) {
  status.className = `notice ${kind}`;
  status.replaceChildren(...sentences.map(([name, values = {}]) => {
    const paragraph = area.querySelector("template").content.querySelector(`[data-say="${name}"]`).cloneNode(true);
    paragraph.textContent = paragraph.textContent.replace(/\{(\w+)\}/g, (whole, key) => values[key] ?? whole);
    return paragraph;
  }));
}

for (const area of document.querySelectorAll(".verify")) {
  const status = area.querySelector("[role=status]");
  if (!globalThis.crypto?.subtle) continue; // only in secure contexts
  area.hidden = false;
  const place = area.querySelector("[data-save]"), save = document.createElement("a");
  Object.assign(save, { href: `/api/v1/handles/${area.dataset.handle}/proof`, download: "proof.json" });
  save.textContent = place.dataset.save;
  place.replaceWith(save);
  area.querySelector("button").addEventListener("click", async () => {
    say(area, status, "info", [["working"]]);
    try {
      const [proof, keys] = await Promise.all([
        get(`/api/v1/handles/${area.dataset.handle}/proof`), get("/api/v1/ledger/key")]);
      const found = await check(proof, keys.key);
      const shown = [...document.querySelectorAll("[data-index]")].map(each => Number(each.dataset.index));
      const isOther = found.seq !== Number(area.dataset.seq) || shown.some(index => !found.indexes.includes(index));
      if (isOther) return say(area, status, "", [["changed"]]);
      const time = new Date(found.at / 1000).toLocaleString(), number = new Intl.NumberFormat();
      const values = { seq: number.format(found.seq), time, count: shown.length, size: number.format(found.size) };
      say(area, status, "ok", [["ok", values], found.signed ? ["signed", { key: keys.origin }] : ["unsigned"], ["caution"]]);
    } catch (problem) {
      say(area, status, "bad", problem instanceof TypeError ? [["failed"]] : [["bad", { problem: problem.message }]]);
    }
  });
}
