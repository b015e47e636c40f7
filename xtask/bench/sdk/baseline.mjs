// Reads event streams with opencode's own SDK: an address on each line of standard input, and the number of events that
// came from there on each line of standard output.
import { createInterface } from "node:readline";
import { createOpencodeClient } from "@opencode-ai/sdk/client";

for await (const baseUrl of createInterface({ input: process.stdin })) {
  // The SDK tries again for ever when a stream breaks.
  const bound = setTimeout(() => process.exit(1), 60_000);
  const { stream } = await createOpencodeClient({ baseUrl }).global.event();
  let seen = 0;
  for await (const event of stream) {
    if (typeof event.payload.type === "string") seen += 1;
  }
  clearTimeout(bound);
  process.stdout.write(`${seen}\n`);
}
