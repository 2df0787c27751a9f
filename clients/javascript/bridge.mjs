// Connects browsers, which support WebSockets but not TCP, to an RLlink server. It also serves this folder.
//
//     node bridge.mjs --port 5580 --server 127.0.0.1:5556
//
// Open http://127.0.0.1:5580/cartpole.html, or connect with `Client.connect({ url: "ws://127.0.0.1:5580/" })`. The bytes
// of RLlink are sent in binary messages of any length. Pages of other sites cannot connect unless --origin allows
// them, because browsers let any page open a WebSocket to this machine.

import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { connect, isIP } from "node:net";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: given } = parseArgs({
  options: {
    host: { type: "string", default: "127.0.0.1" },
    port: { type: "string", default: "5580" },
    server: { type: "string", default: "127.0.0.1:5556" },
    origin: { type: "string", multiple: true, default: [] }, // such as https://games.example
  },
});
const [, serverHost, serverPort] = /^(.*):([0-9]+)$/.exec(given.server) ?? [];
const FOLDER = dirname(fileURLToPath(import.meta.url));
const TYPES = { ".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm" };
const MAX_MESSAGE_BYTES = 2 ** 27;
const [BINARY, CLOSE, PING, PONG] = [2, 8, 9, 10]; // RFC 6455, section 5.2

async function serveFile(request, response) {
  try {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://bridge").pathname)); // without ".."
    const type = TYPES[extname(path)];
    if (!type) throw new Error("not a file that pages may load");
    const content = await readFile(join(FOLDER, path));
    response.writeHead(200, { "content-type": type }).end(content);
  } catch {
    response.writeHead(404).end("not found\n");
  }
}

/**
 * Whether the page with these headers may connect: a page of this bridge, or of --origin; programs other than browsers
 * send no origin. Another site can use a name that leads to this bridge, but not its IP address.
 */
function isAllowed({ origin, host = "" }) {
  const hosts = [given.host, "127.0.0.1", "localhost"].map((name) => `${name}:${server.address().port}`);
  if (isIP(host.replace(/:[0-9]+$/, "").replace(/^\[(.*)\]$/, "$1"))) hosts.push(host);
  return origin === undefined || hosts.some((one) => origin === `http://${one}`) || given.origin.includes(origin);
}

/** Makes a binary frame with these bytes. */
function framed(kind, bytes) {
  const header = Buffer.alloc(bytes.length < 126 ? 2 : bytes.length < 65536 ? 4 : 10);
  header[0] = 0x80 | kind;
  if (header.length === 2) header[1] = bytes.length;
  else if (header.length === 4) header.writeUInt16BE(bytes.length, 2), (header[1] = 126);
  else header.writeBigUInt64BE(BigInt(bytes.length), 2), (header[1] = 127);
  return Buffer.concat([header, bytes]);
}

/** Reads the first frame in `bytes`: {size, kind, content}; content is missing if fewer than `size` bytes are there. */
function firstFrame(bytes) {
  const short = bytes.length < 2 ? 0 : bytes[1] & 127;
  const start = short < 126 ? 6 : short === 126 ? 8 : 14; // header and mask
  if (bytes.length < start) return { size: start };
  const [kind, isMasked, unknownBits] = [bytes[0] & 15, bytes[1] >> 7, bytes[0] & 0x70];
  if (!isMasked || unknownBits) throw new Error("a frame without mask or with unknown bits");
  const length = short < 126 ? short : short === 126 ? bytes.readUInt16BE(2) : Number(bytes.readBigUInt64BE(2));
  if (length > MAX_MESSAGE_BYTES) throw new Error("too large");
  const size = start + length;
  if (bytes.length < size) return { size };
  const mask = bytes.subarray(start - 4, start);
  const content = Buffer.from(bytes.subarray(start, size));
  for (let i = 0; i < length; i++) content[i] ^= mask[i & 3];
  return { size, kind, content };
}

function bridge(request, browser, head) {
  const key = request.headers["sec-websocket-key"];
  if (!key || !isAllowed(request.headers)) return browser.end("HTTP/1.1 403 Forbidden\r\n\r\n");
  const accept = createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
  browser.write(
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
      `Sec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
  const link = connect({ host: serverHost, port: Number(serverPort), noDelay: true });
  const end = () => (browser.destroy(), link.destroy());
  for (const one of [browser, link]) one.on("error", end);
  browser.on("close", end);
  link.on("end", () => browser.end(framed(CLOSE, Buffer.alloc(0))));
  link.on("data", (bytes) => {
    if (browser.write(framed(BINARY, bytes))) return;
    link.pause();
    browser.once("drain", () => link.resume());
  });
  let pieces = []; // of incomplete frames
  let numBytes = 0;
  let numNeeded = 0; // size of the frame being received

  function receive(bytes) {
    pieces.push(bytes);
    numBytes += bytes.length;
    if (numBytes < numNeeded) return;
    let all = Buffer.concat(pieces);
    let frame = firstFrame(all);
    for (; frame.content; frame = firstFrame(all)) {
      all = all.subarray(frame.size);
      if (frame.kind === CLOSE) return browser.end(framed(CLOSE, frame.content));
      if (frame.kind === PING) browser.write(framed(PONG, frame.content));
      else if (frame.kind !== PONG && !link.write(frame.content)) browser.pause();
    }
    pieces = [all];
    numBytes = all.length;
    numNeeded = frame.size;
  }

  link.on("drain", () => browser.resume());
  browser.on("data", (bytes) => {
    try {
      receive(bytes);
    } catch {
      end();
    }
  });
  if (head.length) browser.unshift(head);
}

if (!serverPort) {
  console.error(`--server ${given.server}? HOST:PORT`);
  process.exit(2);
}
const server = createServer(serveFile).on("upgrade", bridge);
server.listen(Number(given.port), given.host, () => {
  console.log(`ws://${given.host}:${server.address().port}/ to ${given.server}`);
});
