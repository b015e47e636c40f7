// opencode's own SDK, as its users call it: an address, a directory and a door's password in the environment. Prints what it
// saw as one line of JSON.
import { createOpencodeClient } from "@opencode-ai/sdk/client";

const { DOOR_URL: baseUrl, DOOR_PASSWORD: password, DOOR_DIRECTORY: directory } = process.env;
// The SDK tries again for ever when a stream breaks.
setTimeout(() => { console.error("the SDK did not come to an end"); process.exit(1); }, 60_000).unref();

const headers = { Authorization: `Basic ${btoa(`opencode:${password}`)}` };
const client = createOpencodeClient({ baseUrl, directory, headers });
const data = ({ data, error }) => {
  if (error !== undefined) throw new Error(JSON.stringify(error));
  return data;
};

const events = await client.event.subscribe();
const iterator = events.stream[Symbol.asyncIterator]();
const kinds = new Set();
const until = async (wanted) => {
  for (;;) {
    const { value, done } = await iterator.next();
    if (done) throw new Error("the event stream ended");
    kinds.add(value.type);
    if (wanted(value)) return value;
  }
};
// The SDK connects when it is first asked for an event.
await until((event) => event.type === "server.connected");
const idle = (id) => until((event) => event.type === "session.idle" && event.properties.sessionID === id);

const session = data(await client.session.create({ body: { title: "by the SDK" } }));
const answer = data(await client.session.prompt({
  path: { id: session.id },
  body: { parts: [{ type: "text", text: "@stub say:hello-from-the-model" }] },
}));
await idle(session.id);

data(await client.session.promptAsync({
  path: { id: session.id },
  body: { parts: [{ type: "text", text: "@stub text:n=5000,d=20" }] },
}));
await until((event) => event.type === "message.part.updated" && event.properties.part.type === "text"
  && event.properties.part.messageID !== answer.info.id && event.properties.part.text.startsWith("word0")
  || event.type === "message.part.delta");
const aborted = data(await client.session.abort({ path: { id: session.id } }));
await idle(session.id);

const messages = data(await client.session.messages({ path: { id: session.id } }));
const sessions = data(await client.session.list());
const missing = await client.session.get({ path: { id: "ses_00000000000000000000000000" } });
console.log(JSON.stringify({
  text: answer.parts.filter((part) => part.type === "text").map((part) => part.text).join(""),
  aborted,
  roles: messages.map((message) => message.info.role),
  lastError: messages.at(-1).info.error?.name ?? null,
  listed: sessions.some((one) => one.id === session.id),
  missing: missing.response.status,
  own: [...kinds].filter((kind) => kind.startsWith("berth.")),
}));
process.exit(0);
