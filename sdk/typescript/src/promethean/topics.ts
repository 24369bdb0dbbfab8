/** The sketch's topics, and pattern matching for topics. */

/** The topics of part 2 of the sketch, section 2a, and `kv.set` of part 1. */
export const Topics = {
  HeartbeatReceived: "heartbeat.received",
  /** Key: the process id. */
  ProcessState: "process.state",
  ProcessStateSnapshot: "process.state.snapshot",
  /** Key: the path. */
  KvSet: "kv.set",
} as const;

/** The topic settings of part 1 of the sketch, section 5. With a server, use `PUT /topics/{topic}` to apply them. */
export const TopicConfig = {
  HeartbeatReceived: { name: "heartbeat.received", retentionDays: 3 },
  /** Key: the process id. */
  ProcessState: { name: "process.state", compaction: true },
  /** Key: the path. */
  KvSet: { name: "kv.set", compaction: true },
} as const;

export function isPattern(subscription: string): boolean {
  return subscription.includes("*");
}

/**
 * Whether a topic or pattern matches: `*` is one segment, `**` zero or more. `dlq.` topics match only patterns that begin with `dlq.`.
 */
export function matchesTopic(subscription: string, topic: string): boolean {
  if (subscription === topic) return true;
  if (!isPattern(subscription)) return false;
  if (topic.startsWith("dlq.") && !subscription.startsWith("dlq.")) return false;
  return matchSegments(subscription.split("."), topic.split("."));
}

function matchSegments([head, ...rest]: string[], topic: string[]): boolean {
  if (head === undefined) return topic.length === 0;
  if (head === "**") return topic.some((_, at) => matchSegments(rest, topic.slice(at))) || matchSegments(rest, []);
  return topic.length > 0 && (head === "*" || head === topic[0]) && matchSegments(rest, topic.slice(1));
}
