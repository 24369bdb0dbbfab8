/** The sketch's rate limits. A server has its own: `limits.publish_rate` and the settings of topics. */
import { TokenBucket } from "../token-bucket.js";

/** 200 messages a second, and as many at once. */
export function makeConnLimiter(): TokenBucket {
  return new TokenBucket({ capacity: 200, refillPerSec: 200 });
}

/** 1,000 messages a second, and as many at once. */
export function makeTopicLimiter(_topic: string): TokenBucket {
  return new TokenBucket({ capacity: 1000, refillPerSec: 1000 });
}
