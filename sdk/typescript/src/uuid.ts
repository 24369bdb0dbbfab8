/** UUIDv7: time first, so that ids made later sort later. */

let lastMs = 0;
let counter = 0;

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

/** Random bytes are fetched in blocks: one call for each id would cost more than the rest of it. */
const pool = new Uint8Array(4096);
let used = pool.length;

function take(count: number): number {
  if (used + count > pool.length) {
    crypto.getRandomValues(pool);
    used = 0;
  }
  const start = used;
  used += count;
  return start;
}

/** A new UUIDv7. Ids of one process rise, also within a millisecond and when the clock is set back. */
export function uuidv7(now: number = Date.now()): string {
  if (now > lastMs) {
    lastMs = now;
    const at = take(2);
    // Half of the counter's range is left for the same millisecond.
    counter = (((pool[at] as number) << 8) | (pool[at + 1] as number)) & 0x7ff;
  } else if (++counter > 0xfff) {
    lastMs += 1;
    counter = 0;
  }
  const time = lastMs.toString(16).padStart(12, "0");
  const at = take(8);
  const random = (index: number): string => HEX[pool[at + index] as number] as string;
  const variant = HEX[((pool[at] as number) & 0x3f) | 0x80] as string;
  return `${time.slice(0, 8)}-${time.slice(8)}-7${counter.toString(16).padStart(3, "0")}-${variant}${random(1)}-` +
    random(2) + random(3) + random(4) + random(5) + random(6) + random(7);
}
