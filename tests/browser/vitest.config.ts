import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["*.test.ts"],
    testTimeout: 30_000,
    hookTimeout: 30_000,
    // Files that run side by side would disturb the times that one of them measures.
    fileParallelism: false,
  },
});
