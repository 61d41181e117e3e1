"""The Lua scripts that apply a tenant's rate limits atomically in Redis.

Limits per minute use the generic cell rate algorithm (ITU-T I.371). Redis keeps one timestamp for
each limit: when the whole limit will be free again. A request is admitted if its cost moves that
timestamp at most one minute ahead. So one minute's allowance may be used at once, it refills
evenly, and more than it may be charged afterwards. The key expires at its timestamp; a missing key
is an unused limit. Running requests are leases in a sorted set by expiry: those of a killed gateway
expire. All times are those of Redis, in milliseconds. The time of writing is kept beside each
timestamp: if the clock was set back since, the timestamp moves with it.
"""

from taco_proto.limits import Limit
from taco_proto.requests import Tenant

# KEYS: requests, tokens, leases.
_COMMON = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000
local MINUTE = 60000
local function write(key, at)
  if at > now then
    redis.call('SET', key, string.format('%.3f %.3f', at, now), 'PX', math.ceil(at - now))
  else
    redis.call('DEL', key)
  end
end
local function free_at(key)
  local at, written = string.match(redis.call('GET', key) or '', '^(%S+) ?(%S*)$')
  at, written = tonumber(at or '') or 0, tonumber(written or '') or now
  if written > now then
    at = at - (written - now)
    write(key, at)
  end
  return math.max(at, now)
end
local function charge(key, limit, amount)
  if limit == 0 or amount == 0 then return end
  write(key, free_at(key) + amount * MINUTE / limit)
end
local function lease(key, member, length)
  redis.call('ZADD', key, string.format('%.3f', now + length), member)
  redis.call('PEXPIRE', key, length)
end
local function shorten_leases(key, length)  -- the clock was set back
  local after = string.format('(%.3f', now + length)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, after, '+inf')) do
    lease(key, member, length)
  end
end
"""

# ARGV: limits of requests a minute, tokens a minute and concurrent requests (0: no limit), tokens,
# lease, lease time. Returns the number of the limit that is reached (1, 2, 3; 0: none), and the
# milliseconds after which to retry.
ADMIT = (
    _COMMON
    + """
local requests, tokens, concurrent = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local amount, length = tonumber(ARGV[4]), tonumber(ARGV[6])
local function wait_for(key, limit, wanted)
  if limit == 0 then return 0 end
  return free_at(key) + wanted * MINUTE / limit - MINUTE - now
end
if concurrent > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.3f', now))
  shorten_leases(KEYS[3], length)
  if redis.call('ZCARD', KEYS[3]) >= concurrent then return {3, 0} end
end
local wait = wait_for(KEYS[1], requests, 1)
if wait > 1 then return {1, math.ceil(wait)} end
wait = wait_for(KEYS[2], tokens, amount)
if wait > 1 then return {2, math.ceil(wait)} end
charge(KEYS[1], requests, 1)
charge(KEYS[2], tokens, amount)
if concurrent > 0 then lease(KEYS[3], ARGV[5], length) end
return {0, 0}
"""
)
REACHED = (None, Limit.REQUESTS, Limit.TOKENS, Limit.CONCURRENT)

# ARGV: limit of requests, requests to charge, limit of tokens, tokens to charge (negative: refund),
# lease time, number of leases to release, these leases, leases to renew.
SETTLE = (
    _COMMON
    + """
charge(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]))
charge(KEYS[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
local length, first_renewed = tonumber(ARGV[5]), 7 + tonumber(ARGV[6])
for i = 7, first_renewed - 1 do redis.call('ZREM', KEYS[3], ARGV[i]) end
for i = first_renewed, #ARGV do lease(KEYS[3], ARGV[i], length) end
return 0
"""
)


def limit_keys(tenant: Tenant) -> tuple[str, str, str]:
    """The KEYS of both scripts."""
    prefix = f"taco:limits:{{{tenant.name}}}"
    return f"{prefix}:requests", f"{prefix}:tokens", f"{prefix}:leases"
