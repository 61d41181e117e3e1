{{/* Names do not depend on the release: workers look for this name, and a cluster has one license. */}}
{{- define "license.name" -}}
taco-license-server
{{- end }}

{{- define "license.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "license.metadata" -}}
metadata:
  name: {{ include "license.name" . }}
  namespace: {{ .Values.namespace | quote }}
  labels:
    {{- include "license.labels" . | nindent 4 }}
{{- end }}

{{- define "license.labels" -}}
{{ include "license.selectorLabels" . }}
app.kubernetes.io/part-of: taco
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "license.image" -}}
{{- with .Values.global.repository }}{{ . | trimSuffix "/" }}/{{ end -}}
taco-license-server:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "license.tlsSecret" -}}
{{ .Values.tls.secretNames.server | default (printf "%s-tls" (include "license.name" .)) }}
{{- end }}

{{- define "license.metricsSecret" -}}
{{ .Values.tls.secretNames.metrics | default (printf "%s-metrics-tls" (include "license.name" .)) }}
{{- end }}

{{/* Checks that a schema cannot express: values that contradict each other fail with one line. */}}
{{- define "license.checks" -}}
{{- $v := .Values -}}
{{- if and (gt (int $v.replicas) 1) (not $v.redis.url) }}{{ fail "replicas above 1 need redis.url: servers cannot share a volume" }}{{ end -}}
{{- if and $v.redis.secretName (not $v.redis.url) }}{{ fail "redis.secretName has no effect without redis.url" }}{{ end -}}
{{- if and $v.tls.enabled (not $v.tls.issuer.name) (not $v.tls.secretNames.server) }}{{ fail "tls.enabled needs tls.issuer.name (the issuer of the workers' certificates) or tls.secretNames.server" }}{{ end -}}
{{- if and $v.tls.enabled $v.serviceMonitor.enabled (not $v.tls.issuer.name) (not $v.tls.secretNames.metrics) }}{{ fail "with tls.enabled Prometheus needs a certificate of the role client: set tls.issuer.name or tls.secretNames.metrics" }}{{ end -}}
{{- end }}
