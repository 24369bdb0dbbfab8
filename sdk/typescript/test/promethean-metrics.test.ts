/** Tests metrics that are used before prom-client has loaded. */
import promClient from "prom-client";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

let metrics: typeof import("../src/promethean/metrics.js")["metrics"];

beforeEach(async () => {
  vi.resetModules();
  promClient.register.clear();
  ({ metrics } = await import("../src/promethean/metrics.js"));
});
afterEach(() => { vi.restoreAllMocks(); });

test("an invalid label in a delayed call is reported, and later calls are counted", async () => {
  const warn = vi.spyOn(console, "warn").mockImplementation(() => {});
  const counter = metrics.counter("waited_total", "calls");
  counter.inc({ topic: "t" });
  counter.inc({ unknown: "label" });
  counter.inc({ topic: "t" });
  expect(await metrics.ready()).toBe(true);
  expect(await promClient.register.metrics()).toContain('waited_total{topic="t"} 2');
  expect(warn).toHaveBeenCalledTimes(1);
  expect(warn.mock.calls[0]?.[0]).toMatch(/^metrics: .*label/);
});

test("use() does not throw if a delayed call has an invalid label", () => {
  const warn = vi.spyOn(console, "warn").mockImplementation(() => {});
  metrics.histo("waited_ms", "ms").observe({ unknown: "label" }, 1);
  metrics.use(promClient);
  expect(warn).toHaveBeenCalledTimes(1);
});

test("a gauge goes up and down", async () => {
  const gauge = metrics.gauge("in_flight", "events");
  gauge.inc({ topic: "t" });
  gauge.inc({ topic: "t" }, 4);
  await metrics.ready();
  gauge.dec({ topic: "t" }, 2);
  gauge.dec({ topic: "t" });
  const plain = metrics.gauge("plain", "events");
  plain.inc();
  plain.inc(3);
  plain.dec();
  const text = await promClient.register.metrics();
  expect(text).toContain('in_flight{topic="t"} 2');
  expect(text).toMatch(/^plain 3$/m);
});
