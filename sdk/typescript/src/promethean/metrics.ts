/** The sketch's metrics helper. Uses prom-client, which is optional: without it nothing is counted. */
import { messageOf } from "../errors.js";

export type Labels = Record<string, string>;

/** The metric names of the sketch. A prombus server exposes its own metrics at `/metrics`. */
export const MetricNames = {
  EventsPublished: "events_published_total",
  EventsDelivered: "events_delivered_total",
  EventsInflight: "events_inflight",
  EventsAcked: "events_acked_total",
  EventsNacked: "events_nacked_total",
  SubscribePollDuration: "subscribe_poll_duration_ms",
  DeliveryHandlerDuration: "delivery_handler_duration_ms",
  WsInflight: "ws_inflight",
  DeliveryLatency: "delivery_latency_ms",
} as const;

export interface CounterLike {
  inc(labels?: Labels | number, value?: number): void;
}

export interface GaugeLike {
  set(labels: Labels | number, value?: number): void;
  inc(labels?: Labels | number, value?: number): void;
  dec(labels?: Labels | number, value?: number): void;
}

export interface HistogramLike {
  observe(labels: Labels | number, value?: number): void;
}

interface MetricConfig {
  name: string;
  help: string;
  labelNames: string[];
  buckets?: number[];
}

/** The part of prom-client that is used here. */
export interface PromClient {
  Counter: new (config: MetricConfig) => CounterLike;
  Gauge: new (config: MetricConfig) => GaugeLike;
  Histogram: new (config: MetricConfig & { buckets: number[] }) => HistogramLike;
  register: { contentType: string; metrics(): Promise<string>; getSingleMetric(name: string): unknown };
}

/** The part of an Express app that is used here. */
export interface MetricsApp {
  get(path: string, handler: (req: unknown, res: MetricsResponse) => unknown): unknown;
}

export interface MetricsResponse {
  statusCode: number;
  set(name: string, value: string): unknown;
  end(body?: string): unknown;
}

const LABELS = ["topic", "group"];
const BUCKETS = [5, 10, 25, 50, 100, 250, 500, 1000];
/** Maximum number of calls that are kept until prom-client has loaded. */
const MAX_WAITING = 10_000;

let client: PromClient | null | undefined;
let loading: Promise<PromClient | null> | undefined;
let waiting: ((loaded: PromClient) => void)[] = [];

function found(loaded: PromClient | null): PromClient | null {
  client = loaded;
  const calls = waiting;
  waiting = [];
  if (loaded === null) return null;
  for (const call of calls) {
    try {
      call(loaded);
    } catch (thrown) {
      // E.g. an unknown label. The caller cannot be told any more, and the other calls must still be made.
      console.warn(`metrics: ${messageOf(thrown)}`);
    }
  }
  return loaded;
}

function load(): Promise<PromClient | null> {
  if (client !== undefined) return Promise.resolve(client);
  // The name is in a variable, so that compilers and bundlers do not try to resolve an optional module.
  const name = "prom-client";
  loading ??= import(name).then(
    (module: { default?: PromClient } & PromClient) => (client === undefined ? found(module.default ?? module) : client),
    () => (client === undefined ? found(null) : client),
  );
  return loading;
}

function whenLoaded(call: (loaded: PromClient) => void): void {
  if (client === null) return;
  if (client !== undefined) return call(client);
  if (waiting.length < MAX_WAITING) waiting.push(call);
  void load();
}

/** Returns the metric with this name; creates it if it does not exist. */
function once<M>(cache: Map<string, M>, name: string, loaded: PromClient, make: () => M): M {
  let metric = cache.get(name);
  if (metric === undefined) {
    metric = (loaded.register.getSingleMetric(name) as M | undefined) ?? make();
    cache.set(name, metric);
  }
  return metric;
}

/** The arguments for prom-client: labels and value, or the value alone. */
function args<A>(labels: Labels | number | undefined, value: number | undefined): A {
  return (labels === undefined ? [] : value === undefined ? [labels] : [labels, value]) as A;
}

const counters = new Map<string, CounterLike>();
const gauges = new Map<string, GaugeLike>();
const histos = new Map<string, HistogramLike>();

/**
 * Metrics with the labels `topic` and `group`. prom-client is loaded in the background; calls that are made in the meantime are
 * counted when it is loaded.
 */
export const metrics = {
  counters,
  gauges,
  histos,

  /** Uses this prom-client instead of the installed one. */
  use(promClient: PromClient | null): void {
    found(promClient);
  },

  /** Resolves with whether prom-client is installed. */
  async ready(): Promise<boolean> {
    return (await load()) !== null;
  },

  gauge(name: string, help: string): GaugeLike {
    const make = (loaded: PromClient): GaugeLike =>
      once(gauges, name, loaded, () => new loaded.Gauge({ name, help, labelNames: LABELS }));
    whenLoaded(make);
    return {
      set: (labels, value) => whenLoaded((loaded) => make(loaded).set(...args<[Labels, number]>(labels, value))),
      inc: (labels, value) => whenLoaded((loaded) => make(loaded).inc(...args<[Labels, number]>(labels, value))),
      dec: (labels, value) => whenLoaded((loaded) => make(loaded).dec(...args<[Labels, number]>(labels, value))),
    };
  },

  counter(name: string, help: string): CounterLike {
    const make = (loaded: PromClient): CounterLike =>
      once(counters, name, loaded, () => new loaded.Counter({ name, help, labelNames: LABELS }));
    whenLoaded(make);
    return { inc: (labels, value) => whenLoaded((loaded) => make(loaded).inc(...args<[Labels, number]>(labels, value))) };
  },

  histo(name: string, help: string, buckets: number[] = BUCKETS): HistogramLike {
    const make = (loaded: PromClient): HistogramLike =>
      once(histos, name, loaded, () => new loaded.Histogram({ name, help, labelNames: LABELS, buckets }));
    whenLoaded(make);
    return { observe: (labels, value) => whenLoaded((loaded) => make(loaded).observe(...args<[Labels, number]>(labels, value))) };
  },

  /** Serves the metrics of this process with an Express app. Responds with 404 if prom-client is not installed. */
  expose(app: MetricsApp, path = "/metrics"): void {
    app.get(path, async (_req, res) => {
      const loaded = await load();
      if (loaded === null) {
        res.statusCode = 404;
        res.end("prom-client is not installed");
        return;
      }
      const text = await loaded.register.metrics();
      res.set("Content-Type", loaded.register.contentType);
      res.end(text);
    });
  },
};
