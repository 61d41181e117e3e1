{{/*
Files that services use: models, Redis password, certificates, API keys. Each has its arguments here and
its files in `taco.mounts` and `taco.volumes`, so that the three agree. All take {root, key}.
*/}}

{{- define "taco.usesModel" -}}
{{- if ne .key "scheduler" }}true{{ end -}}
{{- end }}

{{- define "taco.usesRedis" -}}
{{- if and (has .key (list "gateway" "scheduler")) (include "taco.redisUrl" .root) }}true{{ end -}}
{{- end }}

{{- define "taco.modelArgs" -}}
{{- with .root.Values.model.servedName }}
- {{ printf "--served-model-name=%s" . | quote }}
{{- end }}
{{- with .root.Values.model.revision }}
- {{ printf "--revision=%s" . | quote }}
{{- end }}
{{- end }}

{{/* Number of draft tokens: the scheduler and the workers need the same value. */}}
{{- define "taco.draftArgs" -}}
{{- if .root.Values.draftWorker.enabled }}
- --num-speculative-tokens={{ .root.Values.draftWorker.tokens }}
{{- end }}
{{- end }}

{{- define "taco.redisArgs" -}}
{{- if include "taco.usesRedis" . }}
- --redis-url={{ include "taco.redisUrl" .root }}
{{- if .root.Values.redis.secretName }}
- --redis-password-file=/etc/taco/redis/{{ .root.Values.redis.key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "taco.tlsArgs" -}}
{{- if .root.Values.tls.enabled }}
- --tls-ca-file=/etc/taco/tls/ca.crt
- --tls-cert-file=/etc/taco/tls/tls.crt
- --tls-key-file=/etc/taco/tls/tls.key
{{- end }}
{{- end }}

{{/* Secret with a role's certificate: from the values, or filled by cert-manager. */}}
{{- define "taco.tlsSecretName" -}}
{{- $name := ternary "worker" .key (eq .key "workerCpu") -}}
{{- index .root.Values.tls.secretNames $name | default (printf "%s-tls" (include "taco.componentName" (dict "root" .root "key" $name))) -}}
{{- end }}

{{/* Environment beside the images' own: HOME and HF_HOME are writable mounts. */}}
{{- define "taco.env" -}}
{{- if include "taco.usesModel" . }}
{{- if not .root.Values.model.fromHub }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- with .root.Values.model.hubToken }}
{{- if .secretName }}
- {name: HF_TOKEN_PATH, value: /etc/taco/hub/{{ .key }}}
{{- end }}
{{- end }}
{{- end }}
{{- if and (hasPrefix "worker" .key) .root.Values.license.serverAddress }}
- {name: TACO_LS_ADDR, value: {{ .root.Values.license.serverAddress | quote }}}
{{- end }}
{{- if eq .key "worker" }}
- {name: TRITON_CACHE_DIR, value: /tmp/triton}  # code is loaded from it: on no volume that others write to
{{- end }}
{{- if eq .key "workerCpu" }}
- name: TACO_LICENSE_ID  # a host without a GPU is licensed by the name of its node
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}
{{- if and (eq .key "scheduler") (include "taco.usesRedis" .) }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- with (index .root.Values .key).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "taco.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if include "taco.usesModel" . }}
- {name: models-cache, mountPath: /models-cache}
{{- if .root.Values.model.existingClaim }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if .root.Values.model.hubToken.secretName }}
- {name: hub-token, mountPath: /etc/taco/hub, readOnly: true}
{{- end }}
{{- end }}
{{- if and (include "taco.usesRedis" .) .root.Values.redis.secretName }}
- {name: redis, mountPath: /etc/taco/redis, readOnly: true}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/taco/tls, readOnly: true}
{{- end }}
{{- if eq .key "gateway" }}
{{- if .root.Values.gateway.apiKeys.secretName }}
- {name: api-keys, mountPath: /etc/taco/keys, readOnly: true}
{{- end }}
{{- if .root.Values.gateway.https.secretName }}
- {name: https, mountPath: /etc/taco/https, readOnly: true}
{{- end }}
{{- end }}
{{- if and (hasPrefix "worker" .key) (index .root.Values .key).kvDisk.enabled }}
- {name: kv-disk, mountPath: /kv-disk}
{{- end }}
{{- end }}

{{/* All volumes but the KV disk, which a StatefulSet claims per pod. */}}
{{- define "taco.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if include "taco.usesModel" . }}
{{- with .root.Values.model }}
- name: models-cache
  {{- if .cache.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .cache.existingClaim }}}
  {{- else if .cache.sizeLimit }}
  emptyDir: {sizeLimit: {{ .cache.sizeLimit }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- if .existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .existingClaim }}, readOnly: true}
{{- end }}
{{- if .hubToken.secretName }}
{{ include "taco.secretVolume" (dict "name" "hub-token" "secret" .hubToken.secretName) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (include "taco.usesRedis" .) .root.Values.redis.secretName }}
{{ include "taco.secretVolume" (dict "name" "redis" "secret" .root.Values.redis.secretName) }}
{{- end }}
{{- if .root.Values.tls.enabled }}
{{ include "taco.secretVolume" (dict "name" "tls" "secret" (include "taco.tlsSecretName" .)) }}
{{- end }}
{{- if eq .key "gateway" }}
{{- with .root.Values.gateway.apiKeys.secretName }}
{{ include "taco.secretVolume" (dict "name" "api-keys" "secret" .) }}
{{- end }}
{{- with .root.Values.gateway.https.secretName }}
{{ include "taco.secretVolume" (dict "name" "https" "secret" .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "taco.secretVolume" -}}
- name: {{ .name }}
  secret: {secretName: {{ .secret }}, defaultMode: 0440}
{{- end }}
