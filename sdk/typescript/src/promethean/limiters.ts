/** The sketch's rate limits. A prombus server has its own rate limits: `limits.publish_rate` and the topic settings. */
import { TokenBucket } from "../token-bucket.js";

/** 200 messages per second, in bursts of up to 200. */
export function makeConnLimiter(): TokenBucket {
  return new TokenBucket({ capacity: 200, refillPerSec: 200 });
}

/** 1,000 messages per second, in bursts of up to 1,000. */
export function makeTopicLimiter(_topic: string): TokenBucket {
  return new TokenBucket({ capacity: 1000, refillPerSec: 1000 });
}
