/** Generates UUIDv7s: ids that begin with the time, so that later ids sort after earlier ones. */

let lastMs = 0;
let counter = 0;

/** Random numbers are fetched in blocks: one call per id would cost more than the rest of the function. */
const pool = new Uint32Array(1024);
let used = pool.length;

function randomHex(): string {
  if (used === pool.length) {
    crypto.getRandomValues(pool);
    used = 0;
  }
  return (pool[used++] as number).toString(16).padStart(8, "0");
}

/** A new UUIDv7. The ids of a process always increase, even within a millisecond and when the clock is set back. */
export function uuidv7(now: number = Date.now()): string {
  if (now > lastMs) {
    lastMs = now;
    counter = 0;
  } else if (++counter > 0xfff) {
    lastMs += 1;
    counter = 0;
  }
  const time = lastMs.toString(16).padStart(12, "0");
  const count = counter.toString(16).padStart(3, "0");
  const random = randomHex() + randomHex();
  // This hex digit consists of the variant (the bits 10) and two random bits.
  const variant = "89ab"[parseInt(random[0] as string, 16) & 3];
  return `${time.slice(0, 8)}-${time.slice(8)}-7${count}-${variant}${random.slice(1, 4)}-${random.slice(4)}`;
}
