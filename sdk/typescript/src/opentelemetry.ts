/**
 * OpenTelemetry: a span for each publish and for each handled event, connected through the event's headers.
 *
 * Spans follow the semantic conventions for messaging. The global propagator writes the trace context to the event's headers; the
 * W3C propagator uses `traceparent`, `tracestate` and `baggage`.
 */
import {
  type Attributes, context, propagation, type Span, SpanKind, SpanStatusCode, trace, type Tracer, type TracerProvider,
} from "@opentelemetry/api";
import { messageOf, PrombusError } from "./errors.js";
import type { Telemetry } from "./telemetry.js";
import type { DeliveryContext, StoredEvent } from "./types.js";

/** Options of `openTelemetry`. */
export interface OpenTelemetryOptions {
  /** Default: the tracer `@prombus/client` of `tracerProvider`. */
  tracer?: Tracer;
  /** Default: the global provider. */
  tracerProvider?: TracerProvider;
  /** Attributes of every span, e.g. `server.address`. */
  attributes?: Attributes;
  /**
   * `"parent"` (the default): the handler's span is a child of the publish's span. `"link"`: the handler's span starts a new trace
   * with a link to the publish's span; use this for events that are handled long after they were published.
   */
  relation?: "parent" | "link";
}

/**
 * Tracing for `connect`:
 *
 * ```ts
 * const client = connect("ws://127.0.0.1:8090", { telemetry: openTelemetry() });
 * ```
 */
export function openTelemetry(options: OpenTelemetryOptions = {}): Telemetry {
  const { relation = "parent", attributes: shared = {} } = options;
  // Looked up for each span, so that a provider that is registered later is used.
  const tracer = (): Tracer => options.tracer ?? (options.tracerProvider ?? trace).getTracer("@prombus/client");

  return {
    publish(topic, headers, send) {
      const attributes = {
        ...shared,
        "messaging.system": "prombus",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
      };
      return tracer().startActiveSpan(`send ${topic}`, { kind: SpanKind.PRODUCER, attributes }, async (span) => {
        const carrier: Record<string, string> = { ...headers };
        propagation.inject(context.active(), carrier);
        const isEmpty = headers === undefined && Object.keys(carrier).length === 0;
        return recorded(span, async () => {
          const result = await send(isEmpty ? undefined : carrier);
          addResult(span, result);
          return result;
        });
      });
    },

    handle(event, ctx, run) {
      const remote = propagation.extract(context.active(), event.headers ?? {});
      const link = trace.getSpanContext(remote);
      const isLinked = relation === "link" && link !== undefined;
      const spanOptions = {
        kind: SpanKind.CONSUMER,
        attributes: { ...shared, ...handleAttributes(event, ctx) },
        ...(isLinked ? { links: [{ context: link }], root: true } : {}),
      };
      return tracer().startActiveSpan(`process ${event.topic}`, spanOptions, remote, (span) => recorded(span, run));
    },
  };
}

function handleAttributes(event: StoredEvent, ctx: DeliveryContext): Attributes {
  const attributes: Attributes = {
    "messaging.system": "prombus",
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
    "messaging.destination.name": event.topic,
    "messaging.consumer.group.name": ctx.group,
    "messaging.message.id": event.id,
    "messaging.prombus.message.seq": event.seq,
    "messaging.prombus.message.delivery_attempt": ctx.attempt,
  };
  if (ctx.subscription !== event.topic) attributes["messaging.destination.subscription.name"] = ctx.subscription;
  if (event.key !== undefined) attributes["messaging.prombus.message.key"] = event.key;
  return attributes;
}

/** Adds the answer to a publish to its span. */
function addResult(span: Span, result: unknown): void {
  const { id, seq, duplicate } = (result ?? {}) as { id?: unknown; seq?: unknown; duplicate?: unknown };
  if (typeof id === "string") span.setAttribute("messaging.message.id", id);
  if (typeof seq === "number") span.setAttribute("messaging.prombus.message.seq", seq);
  if (duplicate === true) span.setAttribute("messaging.prombus.message.duplicate", true);
}

async function recorded<R>(span: Span, run: () => Promise<R>): Promise<R> {
  try {
    return await run();
  } catch (thrown) {
    const error = thrown instanceof Error ? thrown : new Error(messageOf(thrown));
    span.recordException(error);
    span.setStatus({ code: SpanStatusCode.ERROR, message: error.message });
    span.setAttribute("error.type", error instanceof PrombusError ? error.code : error.name);
    throw thrown;
  } finally {
    span.end();
  }
}
