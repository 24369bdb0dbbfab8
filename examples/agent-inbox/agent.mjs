// @ts-check
// An agent with a durable inbox: node agent-inbox/agent.mjs ada
//
// The inbox of an agent is the topic agents.<name>.inbox, which is read by a group with the agent's name. Messages wait there
// while the agent is down, and are acked when they are handled. If a second process is started with the same name, the two share
// the inbox.
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "@prombus/client";

/** @typedef {{ kind: "question" | "reply", from: string, text: string }} Message */

const name = process.argv[2] ?? "ada";
/** @type {import("@prombus/client").Client<Record<string, Message>>} */
const bus = connect(process.env.PROMBUS_URL ?? "ws://127.0.0.1:8090", { token: process.env.PROMBUS_TOKEN });
bus.on("nack", ({ id, error }) => console.error(`message ${id}: ${error}`));

await bus.subscribe(`agents.${name}.inbox`, name, async (event, ctx) => {
  const { kind, from, text } = event.payload;
  // A reply ends the conversation: two agents that answered replies would never stop.
  if (kind === "reply") return console.log(`${from} replied: ${text}`);

  console.log(`${from} asks: ${text} (attempt ${ctx.attempt})`);
  const answer = await think(text, ctx.signal);

  // Reply first, then ack (by returning). If the agent dies in between, the question is redelivered and the agent repeats the reply
  // with the same key, so the asker's inbox contains it once. `caused_by` contains the id of the question.
  await bus.publish(`agents.${from}.inbox`, { kind: "reply", from: name, text: answer }, {
    idempotencyKey: `${name} replies to ${event.id}`,
    caused_by: [event.id],
  });
  console.log(`replied to ${from}`);
}, {
  // Also deliver messages that were sent before the agent was started for the first time.
  from: "earliest",
  // A model call may take long, but the client extends the lease while the handler runs. This is only the time after which the
  // message of a hung agent is delivered to another process.
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
