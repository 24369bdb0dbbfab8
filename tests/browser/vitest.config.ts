import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["*.test.ts"],
    testTimeout: 30_000,
    hookTimeout: 30_000,
    // Test files that run in parallel would disturb the time measurements of one of them.
    fileParallelism: false,
  },
});
