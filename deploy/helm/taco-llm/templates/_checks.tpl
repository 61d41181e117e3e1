{{/* What a schema cannot say: values that make no sense together end with one line. */}}
{{- define "taco.checks" -}}
{{- $v := .Values -}}
{{- $redis := include "taco.redisUrl" . -}}
{{- if and $v.redis.enabled $v.redis.url }}{{ fail "redis.enabled and redis.url are two: give one of them" }}{{ end -}}
{{- if and $v.redis.enabled (not $v.redis.secretName) }}{{ fail "redis.enabled needs redis.secretName, a Secret with the password: kubectl create secret generic taco-redis --from-literal=password=\"$(openssl rand -hex 24)\"" }}{{ end -}}
{{- if and $v.redis.secretName (not $redis) }}{{ fail "redis.secretName is of no use without redis.url or redis.enabled" }}{{ end -}}
{{- if and $v.scheduler.enabled (gt (int $v.scheduler.replicas) 1) (not $redis) }}{{ fail "gateways find several schedulers through Redis: scheduler.replicas above 1 needs redis.url or redis.enabled" }}{{ end -}}
{{- if and $v.gateway.apiKeys.inRedis (not $redis) }}{{ fail "gateway.apiKeys.inRedis needs redis.url or redis.enabled" }}{{ end -}}
{{- if and $v.gateway.apiKeys.inRedis $v.gateway.apiKeys.secretName }}{{ fail "API keys stand in Redis or in a Secret: give gateway.apiKeys.inRedis or gateway.apiKeys.secretName" }}{{ end -}}
{{- if and $v.draftWorker.enabled (not $v.draftWorker.model) }}{{ fail "draftWorker.enabled needs draftWorker.model, the small model that drafts" }}{{ end -}}
{{- if and $v.scheduler.enabled $v.scheduler.address }}{{ fail "scheduler.address is that of another release's scheduler: with it set scheduler.enabled to false" }}{{ end -}}
{{- if and (ne $v.autoscaling.kind "none") $v.worker.enabled $v.workerCpu.enabled $v.worker.autoscaling.enabled $v.workerCpu.autoscaling.enabled }}{{ fail "worker and workerCpu serve the same queue, so that one of them is scaled by it: set worker.autoscaling.enabled or workerCpu.autoscaling.enabled to false" }}{{ end -}}
{{- range $key := list "worker" "workerCpu" }}
{{- $w := index $v $key }}
{{- if and $w.enabled (eq (int $w.maxSurge) 0) (eq (int $w.maxUnavailable) 0) }}{{ fail (printf "%s.maxSurge and %s.maxUnavailable are both 0, so that no worker could ever be replaced" $key $key) }}{{ end -}}
{{- end }}
{{- range $key := list "gateway" "worker" "workerCpu" "draftWorker" }}
{{- $a := (index $v $key).autoscaling }}
{{- if lt (int $a.max) (int $a.min) }}{{ fail (printf "%s.autoscaling.max is below its min" $key) }}{{ end -}}
{{- end }}
{{- end }}
