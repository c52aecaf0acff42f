// Sign in with a key file. The key never leaves the browser: it signs the nonce of a session of the API.

const form = document.getElementById("key-form");
const status = document.getElementById("key-status");

const toBase64 = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)));
const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/\s+/g, "")), (each) => each.charCodeAt(0));
const toBase64Url = (bytes) => toBase64(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

const quote = (text) => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`); // for a shell

class UnsupportedKey extends Error {}

// DER: a tag, a length and the content.
function der(tag, ...parts) {
  const content = parts.flatMap((part) => [...part]);
  const size = content.length;
  const bytes = size < 128 ? [size] : size < 256 ? [0x81, size] : [0x82, size >> 8, size & 255];
  return Uint8Array.from([tag, ...bytes, ...content]);
}

// An RSAPrivateKey (PKCS #1) as PrivateKeyInfo (PKCS #8), which WebCrypto reads.
function wrap(pkcs1) {
  const rsaEncryption = [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
  return der(0x30, der(0x02, [0]), der(0x30, rsaEncryption, [0x05, 0x00]), der(0x04, pkcs1));
}

// The words and byte strings of a Handle key file.
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }
  word() {
    this.at += 4;
    return this.view.getInt32(this.at - 4);
  }
  string() {
    const size = this.word();
    if (size < 0 || this.at + size > this.bytes.length) throw new UnsupportedKey("format");
    this.at += size;
    return this.bytes.slice(this.at - size, this.at);
  }
}

function readPlainKey(bytes) {
  const reader = new Reader(bytes);
  const name = new TextDecoder().decode(reader.string());
  if (name !== "RSA_PRIVCRT_KEY") throw new UnsupportedKey("kind");
  const number = () => {
    const data = reader.string();
    const start = data.findIndex((each) => each !== 0);
    return toBase64Url(data.slice(start < 0 ? data.length : start));
  };
  const [n, e, d, p, q, dp, dq, qi] = Array.from({ length: 8 }, number);
  return { kty: "RSA", n, e, d, p, q, dp, dq, qi };
}

async function decrypt(reader, passphrase) {
  if (!passphrase) throw new UnsupportedKey("passphrase");
  const salt = reader.string();
  const iterations = reader.word();
  const length = reader.word();
  const iv = reader.string();
  const data = reader.string();
  const base = await crypto.subtle.importKey("raw", new TextEncoder().encode(passphrase), "PBKDF2", false, ["deriveKey"]);
  const parameters = { name: "PBKDF2", hash: "SHA-1", salt, iterations };
  const key = await crypto.subtle.deriveKey(parameters, base, { name: "AES-CBC", length }, false, ["decrypt"]);
  try {
    return new Uint8Array(await crypto.subtle.decrypt({ name: "AES-CBC", iv }, key, data));
  } catch {
    throw new UnsupportedKey("passphrase");
  }
}

// The key in a file: its form for WebCrypto, and the data.
async function readKeyFile(bytes, passphrase) {
  const text = new TextDecoder("latin1").decode(bytes);
  const pem = /-----BEGIN ([A-Z ]+)-----([\s\S]*?)-----END/.exec(text);
  if (pem) {
    if (pem[1] === "PRIVATE KEY") return ["pkcs8", fromBase64(pem[2])];
    if (pem[1] === "RSA PRIVATE KEY" && !pem[2].includes(":")) return ["pkcs8", wrap(fromBase64(pem[2]))];
    throw new UnsupportedKey(pem[1].includes("ENCRYPTED") || pem[2].includes(":") ? "encrypted" : "kind");
  }
  if (text.trimStart().startsWith("{")) {
    const { kty, n, e, d, p, q, dp, dq, qi } = JSON.parse(text);
    if (kty !== "RSA") throw new UnsupportedKey("kind");
    return ["jwk", { kty, n, e, d, p, q, dp, dq, qi }];
  }
  const reader = new Reader(bytes);
  const scheme = reader.word();
  if (scheme === 1) return ["jwk", readPlainKey(bytes.slice(4))];
  if (scheme === 4) return ["jwk", readPlainKey(await decrypt(reader, passphrase))];
  throw new UnsupportedKey(scheme === 0 || scheme === 2 || scheme === 3 ? "encrypted" : "format");
}

async function sign(event) {
  event.preventDefault();
  const file = form.elements.keyfile.files[0];
  const say = (name) => {
    const words = { SERVER: location.origin, IDENTITY: form.elements.identity.value.trim(), FILE: file?.name };
    const text = form.dataset[name] || form.dataset.failed;
    status.textContent = text.replace(/SERVER|IDENTITY|FILE/g, (word) => (words[word] ? quote(words[word]) : word));
    status.hidden = false;
  };
  if (!file) return say("missing");
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const [format, data] = await readKeyFile(bytes, form.elements.passphrase.value);
    const algorithm = { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" };
    const key = await crypto.subtle.importKey(format, data, algorithm, false, ["sign"]);
    const response = await fetch("/api/sessions", { method: "POST", credentials: "omit" });
    if (!response.ok) return say("failed");
    const session = await response.json();
    const nonce = fromBase64(session.nonce);
    const cnonce = crypto.getRandomValues(new Uint8Array(16));
    const signature = await crypto.subtle.sign(algorithm, key, Uint8Array.from([...nonce, ...cnonce]));
    const fields = { sessionId: session.sessionId, cnonce: toBase64(cnonce), alg: "SHA-256", signature: toBase64(signature) };
    const answer = document.getElementById("key-answer");
    for (const [name, value] of Object.entries(fields)) answer.elements[name].value = value;
    answer.elements.identity.value = answer.elements.id.value = form.elements.identity.value.trim();
    answer.submit();
  } catch (error) {
    say(error instanceof UnsupportedKey ? error.message : error instanceof DOMException ? "kind" : "failed");
  }
}

if (form && globalThis.crypto?.subtle) {
  document.getElementById("key-section").hidden = false;
  form.addEventListener("submit", sign);
}
