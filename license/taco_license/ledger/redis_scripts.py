"""Lua scripts of the ledger in Redis. Redis runs each script atomically.

The keys are a hash with the license and the clock, the seats by GPU, their deadlines by GPU, and
the audit log. The value of a seat is the start of its holder's newest client in 19 digits, followed
by the holder; with a fixed number of digits, texts compare like numbers. Times are those of Redis,
in milliseconds, as are the ids of audit entries.
"""

from taco_license.ledger.leases import LEASE_SECONDS, UNSEEN_SECONDS
from taco_license.ledger.ledger import LIMITED_EVENTS, MAX_AUDITED_CHANGES, unrecorded_changes

STATE = "taco:{license}:state"
SEATS = "taco:{license}:seats"
DEADLINES = "taco:{license}:deadlines"
AUDIT = "taco:{license}:audit"
KEYS = (STATE, SEATS, DEADLINES, AUDIT)
DIGITS = 19  # of a number up to 2**63 - 1
# Approximate maximum length of the audit log, which Redis keeps in memory.
MAX_AUDIT_ENTRIES = 1_000_000
# Interval between stored times: at most this much of the clock is lost if it is set back.
CLOCK_STEP_SECONDS = 1.0

REDIS_TIME = "redis.call('TIME')"

_COMMON = f"""
local clock = CLOCK
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local LEASE = {LEASE_SECONDS * 1000:.0f}
local state = redis.call('HMGET', KEYS[1], 'version', 'latest', 'ticked', 'minute', 'changes')
local version = state[1] or ''
local latest = math.max(tonumber(state[2] or 0), now)
local passed = now - tonumber(state[3] or now)
local minute = string.format('%d', math.floor(now / 60000))
local changes = tonumber(state[5] or 0)
local limited = {{{", ".join(f"['{event}'] = true" for event in sorted(LIMITED_EVENTS))}}}
local function note(event, ...)
  if limited[event] then
    changes = changes + 1
    redis.call('HSET', KEYS[1], 'minute', minute, 'changes', changes)
    if changes > {MAX_AUDITED_CHANGES} then return end
  end
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', {MAX_AUDIT_ENTRIES}, '*', 'event', event, ...)
end
if state[4] ~= minute then
  if changes > {MAX_AUDITED_CHANGES} then
    local excess = changes - {MAX_AUDITED_CHANGES}
    note('more', 'detail', string.format('{unrecorded_changes("%d")}', excess))
    redis.call('HSET', KEYS[1], 'minute', minute, 'changes', 0)
  end
  changes = 0
end
local function started_of(seat) return seat:sub(1, {DIGITS}) end
local function holder_of(seat) return seat:sub({DIGITS + 1}) end
local function free(event, gpu)
  local seat = redis.call('HGET', KEYS[2], gpu)
  redis.call('HDEL', KEYS[2], gpu)
  redis.call('ZREM', KEYS[3], gpu)
  note(event, 'gpu', gpu, 'instance', holder_of(seat))
end
if math.abs(passed) >= {UNSEEN_SECONDS * 1000:.0f} then
  for _, gpu in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    redis.call('ZADD', KEYS[3], now + LEASE, gpu)
  end
else
  for _, gpu in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do free('lapsed', gpu) end
end
if not state[3] or math.abs(passed) >= {CLOCK_STEP_SECONDS * 1000:.0f} then
  redis.call('HSET', KEYS[1], 'latest', latest, 'ticked', now)
end
"""

# Returns the version of the current license, the latest time seen, the time, and the number of
# seats taken.
TICK = "return {version, latest, now, redis.call('HLEN', KEYS[2])}"

# ARGV: the license version that the server knows, its expiry, its access limit, started, instance,
# GPUs. Returns the outcome: `stale` (another version is current); `in_use`, the GPU and its holder;
# `no_seat`, the number of seats taken and of seats requested; `expired`, `granted` or `renewed`,
# and the latest time seen.
TAKE = """
if version ~= ARGV[1] then return {'stale'} end
if latest >= tonumber(ARGV[2]) then return {'expired', latest} end
local limit, started, instance = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local seats = redis.call('HMGET', KEYS[2], unpack(ARGV, 6))
local num_new = 0
for i, seat in ipairs(seats) do
  if not seat then
    num_new = num_new + 1
  elseif holder_of(seat) ~= instance then
    return {'in_use', ARGV[5 + i], holder_of(seat)}
  end
end
local taken = redis.call('HLEN', KEYS[2])
if num_new > 0 and limit > 0 and taken + num_new > limit then
  return {'no_seat', taken, num_new}
end
for i, seat in ipairs(seats) do
  local gpu = ARGV[5 + i]
  if not seat then note('granted', 'gpu', gpu, 'instance', instance) end
  if not seat or started_of(seat) < started then
    redis.call('HSET', KEYS[2], gpu, started .. instance)
  end
  redis.call('ZADD', KEYS[3], now + LEASE, gpu)
end
return {num_new > 0 and 'granted' or 'renewed', latest}
"""

# ARGV: started, instance, GPUs.
RELEASE = """
for i = 3, #ARGV do
  local seat = redis.call('HGET', KEYS[2], ARGV[i])
  if seat and holder_of(seat) == ARGV[2] and started_of(seat) <= ARGV[1] then
    free('released', ARGV[i])
  end
end
return 1
"""

# ARGV: the new version, its file, its expiry (0: not checked), an invalid version that may always
# be replaced, the new latest time, the audit event and its detail, and the licensed GPUs. Returns
# `done`; `same` if the version is already current; `older` and the current version; or `expired`.
REPLACE = """
local is_invalid = version == ARGV[4]
local is_same = version == ARGV[1] and not is_invalid
local is_newer = version:sub(1, DIGITS) < ARGV[1]:sub(1, DIGITS)
if not (version == '' or is_same or is_invalid or is_newer) then return {'older', version} end
local expires = tonumber(ARGV[3])
if expires > 0 and expires <= now then return {'expired'} end
if is_same then return {'same'} end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2], 'latest', ARGV[5])
note(ARGV[6], 'detail', ARGV[7])
local licensed = {}
for i = 8, #ARGV do licensed[ARGV[i]] = true end
for _, gpu in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not licensed[gpu] then free('dropped', gpu) end
end
return {'done'}
""".replace("DIGITS", str(DIGITS))


def script(body: str, clock: str = REDIS_TIME) -> str:
    """The text of a script.

    Args:
        clock: a Lua expression for the time: seconds since the epoch and microseconds.
    """
    return _COMMON.replace("CLOCK", clock) + body
