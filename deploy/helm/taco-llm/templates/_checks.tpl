{{/* Checks that a schema cannot express: values that contradict each other fail with one line. */}}
{{- define "taco.checks" -}}
{{- $v := .Values -}}
{{- $redis := include "taco.redisUrl" . -}}
{{- if and $v.redis.enabled $v.redis.url }}{{ fail "redis.enabled and redis.url exclude each other: set one of them" }}{{ end -}}
{{- if and $v.redis.enabled (not $v.redis.secretName) }}{{ fail "redis.enabled needs redis.secretName, a Secret with the password: kubectl create secret generic taco-redis --from-literal=password=\"$(openssl rand -hex 24)\"" }}{{ end -}}
{{- if and $v.redis.secretName (not $redis) }}{{ fail "redis.secretName has no effect without redis.url or redis.enabled: set one of them" }}{{ end -}}
{{- if and $v.scheduler.enabled (gt (int $v.scheduler.replicas) 1) (not $redis) }}{{ fail "scheduler.replicas above 1 needs redis.url or redis.enabled: gateways find several schedulers through Redis" }}{{ end -}}
{{- if and $v.gateway.apiKeys.inRedis (not $redis) }}{{ fail "gateway.apiKeys.inRedis needs redis.url or redis.enabled" }}{{ end -}}
{{- if and $v.gateway.apiKeys.inRedis $v.gateway.apiKeys.secretName }}{{ fail "gateway.apiKeys.inRedis and gateway.apiKeys.secretName exclude each other: set one of them" }}{{ end -}}
{{- if and $v.draftWorker.enabled (not $v.draftWorker.model) }}{{ fail "draftWorker.enabled needs draftWorker.model, the draft model" }}{{ end -}}
{{- if and $v.scheduler.enabled $v.scheduler.address }}{{ fail "scheduler.address names another release's scheduler: set scheduler.enabled to false, or remove the address" }}{{ end -}}
{{- if and (ne $v.autoscaling.kind "none") $v.worker.enabled $v.workerCpu.enabled $v.worker.autoscaling.enabled $v.workerCpu.autoscaling.enabled }}{{ fail "worker and workerCpu serve the same queue, so only one of them can be autoscaled: set worker.autoscaling.enabled or workerCpu.autoscaling.enabled to false" }}{{ end -}}
{{- range $key := list "worker" "workerCpu" }}
{{- $w := index $v $key }}
{{- if and $w.enabled (eq (int $w.maxSurge) 0) (eq (int $w.maxUnavailable) 0) }}{{ fail (printf "%s.maxSurge and %s.maxUnavailable are both 0, so no worker can be replaced: raise one of them" $key $key) }}{{ end -}}
{{- end }}
{{- range $key := list "gateway" "worker" "workerCpu" "draftWorker" }}
{{- $a := (index $v $key).autoscaling }}
{{- if lt (int $a.max) (int $a.min) }}{{ fail (printf "%s.autoscaling.max is below its min" $key) }}{{ end -}}
{{- end }}
{{- end }}
