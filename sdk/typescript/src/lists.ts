/** Lists of topics and groups. */
import type { Http } from "./http.js";
import type { GroupInfo, TopicInfo } from "./types.js";

export interface TopicsOptions {
  /** Only topics whose names begin with this prefix. */
  prefix?: string;
  signal?: AbortSignal;
}

export interface GroupsOptions {
  /** Only groups that subscribe to exactly this topic or pattern. A pattern does not select the groups of matching topics. */
  topic?: string;
  /** Only groups whose topic or pattern begins with this prefix. */
  prefix?: string;
  signal?: AbortSignal;
}

/** The topics that the token may read, sorted by name. */
export function topics(http: Http, options: TopicsOptions = {}): Promise<TopicInfo[]> {
  return all(http, "topics", options);
}

/** The groups that the token may join, sorted by subscription and name. */
export function groups(http: Http, options: GroupsOptions = {}): Promise<GroupInfo[]> {
  return all(http, "groups", options);
}

async function all<T>(http: Http, name: string, { signal, ...query }: GroupsOptions): Promise<T[]> {
  const found: T[] = [];
  let next: string | undefined;
  do {
    const page = await http.json<Record<string, T[]> & { next?: string }>("GET", `/${name}`, {
      query: { ...query, next, limit: 10_000 },
      signal,
    });
    for (const one of page[name] ?? []) found.push(one);
    next = page.next;
  } while (next);
  return found;
}
