{{/* Common parts of the pods of all services. Each takes {root, key}. */}}

{{- define "taco.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "taco.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Labels and annotations of a pod. They leave out the chart's version, so that a new version alone does not roll pods. */}}
{{- define "taco.podMetadata" -}}
labels:
  {{- include "taco.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/part-of: taco
{{- with (index .root.Values .key).podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Pod spec without containers, volumes and grace period: scheduling, user and security context. */}}
{{- define "taco.podSpec" -}}
{{- $values := index .root.Values .key -}}
serviceAccountName: {{ include "taco.componentName" . }}
automountServiceAccountToken: false
# Environment variables that describe Services could be taken for options.
enableServiceLinks: false
securityContext:
  {{- include "taco.podSecurity" . | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "taco.tolerations" . | trim }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range $topology := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $topology }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "taco.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{/*
Tolerations that start stateless pods elsewhere soon after their node is lost. A pod with a KV disk is bound
to its disk and its name, so it keeps Kubernetes' default.
*/}}
{{- define "taco.tolerations" -}}
{{- $values := index .root.Values .key -}}
{{- with $values.tolerations }}
{{- toYaml . }}
{{- end }}
{{- if not (dig "kvDisk" "enabled" false $values) }}
{{- range $taint := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- if not (contains $taint (toJson $values.tolerations)) }}
- {key: {{ $taint }}, operator: Exists, effect: NoExecute, tolerationSeconds: {{ $.root.Values.nodeLossSeconds }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Common fields of TACO's containers. The command is the image's entry point. */}}
{{- define "taco.container" -}}
{{- $values := index .root.Values .key -}}
name: {{ kebabcase .key }}
image: {{ include "taco.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "taco.containerSecurity" . | nindent 2 }}
resources:
  {{- include "taco.resources" . | nindent 2 }}
{{- include "taco.probes" . | nindent 0 }}
{{- end }}

{{- define "taco.resources" -}}
{{- $resources := deepCopy (index .root.Values .key).resources -}}
{{- if eq .key "worker" }}
{{- $_ := set $resources.limits (index .root.Values .key).gpuResource 1 }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/*
/livez answers while the event loop runs, also during model loading. So no probe limits loading:
progressDeadlineSeconds of the Deployment reports a load that takes too long. The startup probe covers
the import of packages, which is slow from a cold disk.
*/}}
{{- define "taco.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{- define "taco.extraArgs" -}}
{{- range (index .root.Values .key).extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
