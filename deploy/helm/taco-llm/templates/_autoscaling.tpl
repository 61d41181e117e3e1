{{/* What both autoscalers go by. */}}

{{/* The keys of services that are scaled by what they have to do, as {items: [key, …]}. */}}
{{- define "taco.scaled" -}}
items:
{{- range $key := (include "taco.services" . | fromYaml).items }}
{{- with (index $.Values $key).autoscaling }}
{{- if .enabled }}
  - {{ $key }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* {root, key}: what is scaled. */}}
{{- define "taco.scaleTarget" -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" (and (hasPrefix "worker" .key) (dig "kvDisk" "enabled" false (index .root.Values .key))) }}
name: {{ include "taco.componentName" . }}
{{- end }}

{{/*
More comes quickly, but by steps, since a worker needs minutes to load; less comes slowly, one by
one, since what a worker has cached is lost with it.
*/}}
{{- define "taco.scaleBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 30
  selectPolicy: Max
  policies:
    - {type: Pods, value: 2, periodSeconds: 60}
    - {type: Percent, value: 50, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end }}
