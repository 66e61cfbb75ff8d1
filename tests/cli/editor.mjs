// An editor with yaml-language-server: opens one file, and prints what is marked in it and what is offered, as JSON.
// Argument: {server, file, schemas, at: [[line, character], ...]}, both counted from 0.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const asked = JSON.parse(process.argv[2]);
const uri = pathToFileURL(asked.file).href;
const yaml = { schemas: asked.schemas, validate: true, completion: true, hover: true, schemaStore: { enable: false } };
const server = spawn(process.execPath, [asked.server, "--stdio"], { stdio: ["pipe", "pipe", "inherit"] });
const answers = new Map();
let received = Buffer.alloc(0);
let last = 0;
let mark;
const marked = new Promise((resolve) => (mark = resolve));

function send(message) {
  const body = JSON.stringify({ jsonrpc: "2.0", ...message });
  server.stdin.write(`Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
}

function ask(method, params) {
  const id = ++last;
  send({ id, method, params });
  return new Promise((resolve) => answers.set(id, resolve));
}

function take(message) {
  if (message.method === "workspace/configuration") {
    send({ id: message.id, result: message.params.items.map((item) => (item.section === "yaml" ? yaml : null)) });
  } else if (message.method !== undefined && message.id !== undefined) {
    send({ id: message.id, result: null });
  } else if (message.id !== undefined) {
    answers.get(message.id)(message.result);
  } else if (message.method === "textDocument/publishDiagnostics") {
    mark(message.params.diagnostics);
  }
}

server.stdout.on("data", (data) => {
  received = Buffer.concat([received, data]);
  for (;;) {
    const end = received.indexOf("\r\n\r\n");
    if (end < 0) return;
    const whole = end + 4 + Number(/Content-Length: (\d+)/.exec(received.subarray(0, end))[1]);
    if (received.length < whole) return;
    const message = JSON.parse(received.subarray(end + 4, whole));
    received = received.subarray(whole);
    take(message);
  }
});

const textDocument = { completion: { completionItem: { snippetSupport: true } } };
await ask("initialize", { processId: process.pid, rootUri: null, capabilities: { workspace: { configuration: true }, textDocument } });
send({ method: "initialized", params: {} });
send({ method: "workspace/didChangeConfiguration", params: { settings: { yaml } } });
const opened = { uri, languageId: "yaml", version: 1, text: readFileSync(asked.file, "utf8") };
send({ method: "textDocument/didOpen", params: { textDocument: opened } });
const diagnostics = (await marked).map(({ range, message }) => [range.start.line, range.start.character, message]);
const places = [];
for (const [line, character] of asked.at) {
  const at = { textDocument: { uri }, position: { line, character } };
  const offered = await ask("textDocument/completion", at);
  const hover = await ask("textDocument/hover", at);
  places.push({ offered: (offered.items ?? offered).map((item) => item.label), told: hover?.contents?.value ?? "" });
}
process.stdout.write(JSON.stringify({ diagnostics, places }));
await ask("shutdown", null);
send({ method: "exit" });
