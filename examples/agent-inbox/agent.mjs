// @ts-check
// An agent with a durable inbox: node agent-inbox/agent.mjs ada
//
// The inbox of an agent is a topic of its own, agents.<name>.inbox, read by one group with the agent's name. Messages wait
// there while the agent is down, and are acked when they are handled. Start a second process with the same name and the two
// share the inbox.
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "@prombus/client";

/** @typedef {{ kind: "question" | "reply", from: string, text: string }} Message */

const name = process.argv[2] ?? "ada";
/** @type {import("@prombus/client").Client<Record<string, Message>>} */
const bus = connect(process.env.PROMBUS_URL ?? "ws://127.0.0.1:8090", { token: process.env.PROMBUS_TOKEN });
bus.on("nack", ({ id, error }) => console.error(`message ${id}: ${error}`));

await bus.subscribe(`agents.${name}.inbox`, name, async (event, ctx) => {
  const { kind, from, text } = event.payload;
  // A reply ends a conversation; answering it would never end.
  if (kind === "reply") return console.log(`${from} replied: ${text}`);

  console.log(`${from} asks: ${text} (attempt ${ctx.attempt})`);
  const answer = await think(text, ctx.signal);

  // Reply first, then ack (by returning). If the agent dies in between, it gets the question again and repeats the reply
  // under the same key: the asker's inbox has it once. `caused_by` names the question that is answered.
  await bus.publish(`agents.${from}.inbox`, { kind: "reply", from: name, text: answer }, {
    idempotencyKey: `${name} replies to ${event.id}`,
    caused_by: [event.id],
  });
  console.log(`replied to ${from}`);
}, {
  // Messages that were sent before the agent first started count too.
  from: "earliest",
  // A model call may take long. The client extends the lease while the handler runs, so this only has to cover the time
  // until a dead agent's message is given to another process.
  ackTimeoutMs: 10_000,
});
console.log(`${name} is listening`);

for (const signal of /** @type {const} */ (["SIGTERM", "SIGINT"])) {
  process.once(signal, () => void bus.close());
}

/**
 * Simulates a model.
 * @param {string} text
 * @param {AbortSignal} signal
 */
async function think(text, signal) {
  await sleep(Number(process.env.THINK_MS ?? 50), undefined, { signal });
  return text.toUpperCase();
}
