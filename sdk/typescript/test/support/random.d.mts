/** Returns a function like `Math.random`. */
export function randomFrom(seed: number): () => number;
