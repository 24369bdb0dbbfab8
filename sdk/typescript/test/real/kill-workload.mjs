// The workload for a server that is killed and restarted, which must not lose or duplicate events: two clients publish numbered events and
// consume them. Runs in Node and in browsers.
//
// Client 0 and client 1 publish to `kill.0` to `kill.3`. Both are members of the group `workers` on `kill.*`; client 0 is also
// the only member of the group `audit` on `kill.1`. Some handlers wait, and some fail on the first delivery.
import { randomFrom } from "../support/random.mjs";

const TOPICS = ["kill.0", "kill.1", "kill.2", "kill.3"];
/** Maximum number of unanswered publishes per client. Small, so that each kill interrupts the work. */
const IN_FLIGHT = 500;
const PATIENCE_MS = 90_000;
/** How often the server is killed. The work pauses if it has passed the point of the next kill. */
const KILLS = 5;

const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

/**
 * Runs the work and returns its result after both clients are closed. `onProgress` is called with the numbers of events
 * published and handled so far, whether both clients are connected, and how often both have reconnected.
 */
export async function runKillWorkload({ connect, NackError, url, seed, events, onProgress = () => {} }) {
  const random = randomFrom(seed);
  const errors = [];
  const reconnects = [-1, -1]; // the first connection is not a reconnect
  const published = [];
  const handled = { workers: new Map(), audit: new Map() };
  let lastReport = 0;

  const report = (leastNews = 200) => {
    const sum = published.length + handled.workers.size;
    if (sum - lastReport < leastNews) return;
    lastReport = sum;
    const isConnected = clients.every(({ status }) => status === "connected");
    onProgress({ published: published.length, handled: handled.workers.size, isConnected, reconnects: Math.min(...reconnects) });
  };

  const clients = [0, 1].map((index) => {
    const client = connect(url, { maxQueued: IN_FLIGHT, backoff: { minMs: 20, maxMs: 200 } });
    // Handlers throw on purpose; without a listener each error would be logged.
    client.on("nack", () => {});
    client.on("error", (error) => errors.push(`client ${index}: ${error.code}: ${error.message}`));
    client.on("connected", () => { reconnects[index] += 1; });
    return client;
  });

  const handle = (group) => async (event, ctx) => {
    const { n } = event.payload;
    if (n % 500 === 7 && ctx.attempt === 1) throw new NackError("first delivery", { delayMs: 20 });
    if (n % 97 === 0) await sleep(1 + (n % 20));
    handled[group].set(n, (handled[group].get(n) ?? 0) + 1);
    report();
  };
  const options = { from: "earliest", concurrency: 32, maxInFlight: 300, maxAttempts: 50 };
  await Promise.all([
    clients[0].subscribe("kill.*", "workers", handle("workers"), options),
    clients[1].subscribe("kill.*", "workers", handle("workers"), options),
    clients[0].subscribe("kill.1", "audit", handle("audit"), options),
  ]);

  const topicOf = Array.from({ length: events }, () => TOPICS[Math.floor(random() * TOPICS.length)]);
  const publishAll = async (index) => {
    const own = [];
    for (let n = index; n < events; n += 2) {
      while (Math.min(...reconnects) < Math.floor((n / events) * (KILLS + 0.5))) {
        report(0);
        await sleep(20);
      }
      await clients[index].whenWritable();
      const topic = topicOf[n];
      own.push(clients[index].publish(topic, { n, client: index }).then(({ id, seq, duplicate }) => {
        published.push({ n, topic, id, seq, duplicate: duplicate === true });
        report();
      }));
    }
    const failed = (await Promise.allSettled(own)).filter(({ status }) => status === "rejected");
    for (const { reason } of failed.slice(0, 5)) errors.push(`publish: ${reason.code}: ${reason.message}`);
    if (failed.length > 5) errors.push(`${failed.length - 5} more publishes failed`);
  };
  await Promise.all([publishAll(0), publishAll(1)]);

  const audited = topicOf.filter((topic) => topic === "kill.1").length;
  const lag = async () => (await clients[0].groups()).map(({ topic, group, lag }) => ({ topic, group, lag }));
  const until = Date.now() + PATIENCE_MS;
  let groups = [];
  for (;;) {
    const isHandled = handled.workers.size === events && handled.audit.size === audited;
    // The server may be down at this moment.
    if (isHandled) groups = await lag().catch(() => []);
    if (isHandled && groups.length === 2 && groups.every(({ lag }) => lag === 0)) break;
    if (Date.now() > until) {
      const counts = `${handled.workers.size} of ${events} and ${handled.audit.size} of ${audited}`;
      errors.push(`after ${PATIENCE_MS} ms ${counts} events are handled, or their acks are missing`);
      groups = await lag().catch(() => groups);
      break;
    }
    await sleep(50);
  }
  await Promise.all(clients.map((client) => client.close()));

  const countTwice = (counts) => [...counts.values()].filter((count) => count > 1).length;
  return {
    published,
    errors,
    reconnects,
    groups,
    states: clients.map(({ status }) => status),
    audited,
    handled: { workers: handled.workers.size, audit: handled.audit.size },
    handledTwice: { workers: countTwice(handled.workers), audit: countTwice(handled.audit) },
  };
}
