CREATE TABLE IF NOT EXISTS outbox (
  id              TEXT PRIMARY KEY NOT NULL CHECK (typeof(id) = 'text' AND id <> ''),
  topic           TEXT NOT NULL,
  payload         TEXT NOT NULL,
  headers         TEXT,
  key             TEXT,
  ts              INTEGER DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  status          TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'claimed', 'sent', 'error', 'dead')),
  attempts        INTEGER NOT NULL DEFAULT 0,
  next_attempt_ms INTEGER NOT NULL DEFAULT 0,
  lease_until_ms  INTEGER NOT NULL DEFAULT 0,
  worker          TEXT,
  sent_ms         INTEGER,
  last_err        TEXT
);
CREATE INDEX IF NOT EXISTS outbox_due ON outbox (status, next_attempt_ms);
CREATE INDEX IF NOT EXISTS outbox_lease ON outbox (status, lease_until_ms);
CREATE INDEX IF NOT EXISTS outbox_sent ON outbox (status, sent_ms);
CREATE INDEX IF NOT EXISTS outbox_ts ON outbox (ts);
