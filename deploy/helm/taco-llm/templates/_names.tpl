{{/* Names, labels and the list of enabled services. A component is named by its key in values.yaml. */}}

{{/*
Release name for object names. It leaves space for the longest suffix and for the suffix of a StatefulSet.
Names of Services begin with a letter and have no dots; a release name may.
*/}}
{{- define "taco.fullname" -}}
{{- $name := .Release.Name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "taco-%s" $name }}{{ end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* {root, key}: such as taco-worker-cpu for workerCpu. */}}
{{- define "taco.componentName" -}}
{{- include "taco.fullname" .root }}-{{ kebabcase .key -}}
{{- end }}

{{- define "taco.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ kebabcase .key }}
{{- end }}

{{- define "taco.releaseLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "taco.commonLabels" -}}
{{ include "taco.releaseLabels" . }}
app.kubernetes.io/part-of: taco
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "taco.labels" -}}
{{ include "taco.commonLabels" .root }}
app.kubernetes.io/component: {{ kebabcase .key }}
{{- end }}

{{/* {root, key, noun}: metadata of every object of a component. */}}
{{- define "taco.metadata" -}}
metadata:
  name: {{ include "taco.componentName" . }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "taco.labels" . | nindent 4 }}
{{- end }}

{{- define "taco.image" -}}
{{- $name := printf "taco-%s:%s" (kebabcase .key) (.root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- with .root.Values.global.repository }}{{ . | trimSuffix "/" }}/{{ end }}{{ $name -}}
{{- end }}

{{/* The enabled services of TACO, as {items: [key, …]}. */}}
{{- define "taco.services" -}}
items:
{{- range $key := list "gateway" "scheduler" "worker" "workerCpu" "draftWorker" }}
{{- if (index $.Values $key).enabled }}
  - {{ $key }}
{{- end }}
{{- end }}
{{- end }}

{{/* Role in the certificate, and job name in Prometheus. */}}
{{- define "taco.role" -}}
{{- if eq .key "workerCpu" }}worker{{ else }}{{ kebabcase .key }}{{ end -}}
{{- end }}

{{/* Address of the scheduler, for services that connect to a fixed one. */}}
{{- define "taco.schedulerAddress" -}}
{{- if .Values.scheduler.enabled -}}
{{ include "taco.componentName" (dict "root" . "key" "scheduler") }}:7100
{{- else -}}
{{ required "scheduler.address is needed where scheduler.enabled is false: host:7100" .Values.scheduler.address }}
{{- end }}
{{- end }}

{{- define "taco.redisUrl" -}}
{{- if .Values.redis.enabled -}}
{{- $address := printf "%s:6379/0" (include "taco.componentName" (dict "root" . "key" "redis")) -}}
{{- if .Values.tls.enabled -}}
rediss://{{ $address }}?ssl_ca_certs=/etc/taco/tls/ca.crt&ssl_certfile=/etc/taco/tls/tls.crt&ssl_keyfile=/etc/taco/tls/tls.key
{{- else -}}
redis://{{ $address }}
{{- end -}}
{{- else -}}
{{ .Values.redis.url }}
{{- end }}
{{- end }}
