/** Tests spans with the real OpenTelemetry SDK and a real server. */
import { context, propagation, type Span, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import {
  BasicTracerProvider, InMemorySpanExporter, type ReadableSpan, SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-base";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Client, connect } from "../src/client.js";
import { openTelemetry } from "../src/opentelemetry.js";
import type { StoredEvent } from "../src/types.js";
import { startServer, type TestServer } from "./support/server.js";

const exporter = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
let server: TestServer;
let client: Client;

beforeAll(async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  trace.setGlobalTracerProvider(provider);
  server = await startServer();
  client = connect(server.ws, { telemetry: openTelemetry({ attributes: { "server.address": "127.0.0.1" } }) });
});
afterAll(async () => {
  await client.close();
  await server.remove();
  trace.disable();
  propagation.disable();
  context.disable();
});
beforeEach(() => exporter.reset());

async function spans(count: number): Promise<ReadableSpan[]> {
  for (let wait = 0; wait < 400 && exporter.getFinishedSpans().length < count; wait += 1) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return exporter.getFinishedSpans();
}

function named(all: ReadableSpan[], name: string): ReadableSpan {
  const found = all.find((span) => span.name === name);
  if (found === undefined) throw new Error(`no span ${name}, only ${all.map((span) => span.name).join(", ")}`);
  return found;
}

describe("openTelemetry", () => {
  test("a publish, its handler and the handler's own publishes are one trace", async () => {
    const events: StoredEvent[] = [];
    await client.subscribe("trace.*", "g", async (event) => {
      events.push(event);
      if (event.topic === "trace.a") await client.publish("trace.b", 2);
    });
    const id = await trace.getTracer("test").startActiveSpan("request", async (span: Span) => {
      const result = await client.publish("trace.a", 1, { key: "k", headers: { source: "shop" } });
      span.end();
      return result.id;
    });
    const all = await spans(5);
    const request = named(all, "request");
    const send = named(all, "send trace.a");
    const process = named(all, "process trace.a");
    const sendB = named(all, "send trace.b");
    const processB = named(all, "process trace.b");
    for (const span of all) expect(span.spanContext().traceId).toBe(request.spanContext().traceId);
    expect(send.parentSpanContext?.spanId).toBe(request.spanContext().spanId);
    expect(process.parentSpanContext?.spanId).toBe(send.spanContext().spanId);
    expect(sendB.parentSpanContext?.spanId).toBe(process.spanContext().spanId);
    expect(processB.parentSpanContext?.spanId).toBe(sendB.spanContext().spanId);
    expect(send.kind).toBe(SpanKind.PRODUCER);
    expect(process.kind).toBe(SpanKind.CONSUMER);
    expect(send.attributes).toMatchObject({
      "messaging.system": "prombus",
      "messaging.operation.name": "send",
      "messaging.operation.type": "send",
      "messaging.destination.name": "trace.a",
      "messaging.message.id": id,
      "server.address": "127.0.0.1",
    });
    expect(process.attributes).toMatchObject({
      "messaging.system": "prombus",
      "messaging.operation.type": "process",
      "messaging.destination.name": "trace.a",
      "messaging.destination.subscription.name": "trace.*",
      "messaging.consumer.group.name": "g",
      "messaging.message.id": id,
      "messaging.prombus.message.key": "k",
      "messaging.prombus.message.delivery_attempt": 1,
    });
    expect(events[0]?.headers).toMatchObject({ source: "shop", traceparent: expect.stringContaining(send.spanContext().spanId) });
  });

  test("errors of refused publishes and of failed handlers are recorded", async () => {
    await expect(client.publish("not a topic", 1)).rejects.toMatchObject({ code: "bad_topic" });
    const [refused] = await spans(1);
    expect(refused?.status.code).toBe(SpanStatusCode.ERROR);
    expect(refused?.attributes["error.type"]).toBe("bad_topic");
    expect(refused?.events[0]?.name).toBe("exception");
    exporter.reset();
    await client.subscribe("trace.fail", "g", async (_event, ctx) => {
      if (ctx.attempt === 1) throw new TypeError("boom");
    });
    await client.publish("trace.fail", 1);
    const attempts = (await spans(4)).filter((span) => span.name === "process trace.fail" && span.attributes["messaging.destination.subscription.name"] === undefined);
    expect(attempts.map((span) => [span.status.code, span.attributes["error.type"]])).toEqual([
      [SpanStatusCode.ERROR, "TypeError"], [SpanStatusCode.UNSET, undefined],
    ]);
    expect(attempts[0]?.status.message).toBe("boom");
  });

  test("with relation link, a handler starts a new trace that links to the publish", async () => {
    const linking = connect(server.ws, { telemetry: openTelemetry({ relation: "link", tracerProvider: provider }) });
    await linking.subscribe("link.a", "g", () => {});
    await linking.publish("link.a", 1);
    const all = await spans(2);
    const send = named(all, "send link.a").spanContext();
    const process = named(all, "process link.a");
    expect(process.spanContext().traceId).not.toBe(send.traceId);
    expect(process.links[0]?.context.spanId).toBe(send.spanId);
    await linking.close();
  });

  test("without a registered SDK nothing is added to the headers", async () => {
    trace.disable();
    propagation.disable();
    try {
      const telemetry = openTelemetry();
      const sent = await telemetry.publish("t", undefined, async (headers) => headers);
      expect(sent).toBeUndefined();
      expect(await telemetry.publish("t", { a: "b" }, async (headers) => headers)).toEqual({ a: "b" });
    } finally {
      propagation.setGlobalPropagator(new W3CTraceContextPropagator());
      trace.setGlobalTracerProvider(provider);
    }
  });
});
