// @ts-check
// Asks an agent and waits for its reply: node agent-inbox/ask.mjs <asker> <agent> <question>
import { connect } from "@prombus/client";

/** @typedef {{ kind: "question" | "reply", from: string, text: string }} Message */

const [me = "bob", agent = "ada", text = "how are you?"] = process.argv.slice(2);
/** @type {import("@prombus/client").Client<Record<string, Message>>} */
const bus = connect(process.env.PROMBUS_URL ?? "ws://127.0.0.1:8090", { token: process.env.PROMBUS_TOKEN });

// Join before asking: by default a new group starts at the end of its topic and would miss a reply that was published before it
// joined. `from: "earliest"` also avoids that.
const inbox = bus.consume(`agents.${me}.inbox`, me, { from: "earliest" });
await inbox.join();

const { id } = await bus.publish(`agents.${agent}.inbox`, { kind: "question", from: me, text });
console.log(`asked ${agent}`);

for await (const delivery of inbox) {
  const { event } = delivery;
  // Ack every message, even if it is not the reply to this question.
  await delivery.ack();
  if (event.caused_by?.includes(id)) {
    console.log(`${event.payload.from} replied: ${event.payload.text}`);
    break; // leaves the group
  }
}
await bus.close();
