{{/* The parts that the pods of all services have in common. Each takes {root, key}. */}}

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

{{/* Labels and annotations of a pod. The chart's version is none of them: it alone is no reason to roll pods. */}}
{{- define "taco.podMetadata" -}}
labels:
  {{- include "taco.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/part-of: taco
{{- with (index .root.Values .key).podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where a pod runs and as whom: all of its spec but containers, volumes and time to stop. */}}
{{- define "taco.podSpec" -}}
{{- $values := index .root.Values .key -}}
serviceAccountName: {{ include "taco.componentName" . }}
automountServiceAccountToken: false
# Variables that describe Services would only be mistaken for options.
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
Pods that keep nothing are soon started elsewhere when their node is lost. One with a KV disk is
bound to it, and to its name, so that haste is of no use to it.
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

{{/* What all containers of TACO have. Its command is the image's own entry point. */}}
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
/livez ticks with the event loop, also while a model loads, so that loading has no limit here: a
Deployment's progressDeadlineSeconds tells of one that takes too long. Until it answers first, the
process imports its packages, which takes a while from a cold disk.
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
