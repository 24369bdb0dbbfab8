/** The interface between the client and tracing. `@prombus/client/opentelemetry` implements it. */
import type { DeliveryContext, StoredEvent } from "./types.js";

/** Wraps publishes and handlers, e.g. in spans. */
export interface Telemetry {
  /** Wraps a publish. Calls `send` with the event's headers plus those that contain the trace context. */
  publish<R>(
    topic: string,
    headers: Record<string, string> | undefined,
    send: (headers: Record<string, string> | undefined) => Promise<R>,
  ): Promise<R>;
  /** Wraps the handling of an event. */
  handle<R>(event: StoredEvent, ctx: DeliveryContext, run: () => Promise<R>): Promise<R>;
}
