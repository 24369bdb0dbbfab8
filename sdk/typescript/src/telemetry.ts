/** Where tracing attaches to the client. `@prombus/client/opentelemetry` implements it. */
import type { DeliveryContext, StoredEvent } from "./types.js";

/** Wraps publishes and handlers, e.g. in spans. */
export interface Telemetry {
  /** Wraps a publish. `send` gets the event's headers, with those that carry the context. */
  publish<R>(
    topic: string,
    headers: Record<string, string> | undefined,
    send: (headers: Record<string, string> | undefined) => Promise<R>,
  ): Promise<R>;
  /** Wraps the handling of an event. */
  handle<R>(event: StoredEvent, ctx: DeliveryContext, run: () => Promise<R>): Promise<R>;
}
