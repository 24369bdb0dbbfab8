/** Types of topics and payloads, and run-time checks with Standard Schema validators. */
import { ValidationError, type ValidationIssue } from "./errors.js";
import type { DeadLetter } from "./types.js";

/** Topic names and the types of their payloads, e.g. `{ "orders.new": Order }`. */
export type TopicMap = Record<string, unknown>;

/** The part of [Standard Schema](https://standardschema.dev) that is used here; zod, valibot and arktype implement it. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

export type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly ValidationIssue[] };

/** Topic names and the validators of their payloads. */
export type Schemas = Record<string, StandardSchema>;

type InputOf<S> = S extends StandardSchema<infer Input, unknown> ? Input : never;
type OutputOf<S> = S extends { readonly "~standard": { readonly types?: { readonly output: infer Output } | undefined } }
  ? Output
  : never;

/** The payloads that can be published, by topic. */
export type Inputs<S> = { [K in keyof S]: InputOf<S[K]> };
/** The payloads that handlers receive, by topic. */
export type Outputs<S> = { [K in keyof S]: OutputOf<S[K]> };

/** Whether the pattern `P` matches the topic `T`: `*` matches one segment, `**` zero or more. */
type Matches<P extends string, T extends string> = P extends T
  ? true
  : P extends "**"
    ? true
    : P extends `${infer Head}.${infer Rest}`
      ? Head extends "**"
        ? Matches<Rest, T> extends true
          ? true
          : T extends `${string}.${infer Tail}` ? Matches<P, Tail> : false
        : T extends `${infer First}.${infer Tail}`
          ? Head extends "*" | First ? Matches<Rest, Tail> : false
          : Head extends "*" | T ? (Rest extends "**" ? true : false) : false
      : P extends "*"
        ? T extends `${string}.${string}` ? false : true
        : false;

/**
 * The topics that the pattern `P` matches, without dead-letter topics: these match only patterns that begin with `dlq.`, which
 * {@link PayloadOf} handles.
 */
type MatchingTopics<M, P extends string> = {
  [K in keyof M & string]: K extends `dlq.${string}` ? never : Matches<P, K> extends true ? K : never;
}[keyof M & string];

/** The topics that can be published to. */
export type TopicOf<M> = keyof M & string;
/** The topics and patterns that can be subscribed to. */
export type SubscriptionOf<M> = TopicOf<M> | `${string}*${string}` | `dlq.${string}`;

/** The payload of a topic, or of all topics that a pattern matches. */
export type PayloadOf<M, P extends string> = string extends keyof M
  ? M[keyof M]
  : P extends keyof M
    ? M[P]
    : P extends `dlq.${infer Topic}`
      ? DeadLetter<PayloadOf<M, Topic>>
      : [MatchingTopics<M, P>] extends [never] ? unknown : M[MatchingTopics<M, P>];

/**
 * Checks a payload with the schema of its topic. Returns the schema's output, or a promise of it if the schema is asynchronous.
 * Without a schema, returns the payload unchanged.
 */
export function validate(schemas: Schemas | undefined, topic: string, payload: unknown): unknown {
  const schema = schemas !== undefined && Object.hasOwn(schemas, topic) ? schemas[topic] : undefined;
  if (schema === undefined) return payload;
  const accept = (result: SchemaResult<unknown>): unknown => {
    if (result.issues !== undefined) throw new ValidationError(topic, result.issues);
    return result.value;
  };
  const result = schema["~standard"].validate(payload);
  return result instanceof Promise ? result.then(accept) : accept(result);
}
