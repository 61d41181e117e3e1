{{/* Helpers of both autoscalers: HorizontalPodAutoscaler and KEDA. */}}

{{/* The keys of services that are autoscaled, as {items: [key, …]}. */}}
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

{{/*
{root, key}: number of pods. With an autoscaler, an upgrade keeps the number in the cluster: an object
without `replicas` would fall to 1 when autoscaling is turned on.
*/}}
{{- define "taco.replicas" -}}
{{- $values := index .root.Values .key -}}
{{- if and (ne .root.Values.autoscaling.kind "none") (has .key (include "taco.scaled" .root | fromYaml).items) -}}
{{- $target := include "taco.scaleTarget" . | fromYaml -}}
{{- $there := lookup $target.apiVersion $target.kind .root.Release.Namespace $target.name -}}
{{- if $there }}{{ $there.spec.replicas }}{{ else }}{{ $values.autoscaling.min }}{{ end -}}
{{- else -}}
{{ $values.replicas }}
{{- end }}
{{- end }}

{{/* {root, key}: the object to scale (scaleTargetRef). */}}
{{- define "taco.scaleTarget" -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" (and (hasPrefix "worker" .key) (dig "kvDisk" "enabled" false (index .root.Values .key))) }}
name: {{ include "taco.componentName" . }}
{{- end }}

{{/*
Scales up quickly but in steps, because a worker takes minutes to load. Scales down slowly and one by
one, because a worker's prefix cache is lost with it.
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
