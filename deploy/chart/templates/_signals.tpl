{{/*
What the components scale on: what clients feel and what waits, never CPU (a worker that serves well is always busy).
Every signal is one Prometheus query. KEDA asks Prometheus itself; an HPA asks an adapter that has the same queries.

`type` is KEDA's and the HPA's: Value compares the figure with the target (pods × figure / target), AverageValue shares
the figure among the pods (figure / target). NAMESPACE and WINDOW in a query are filled in here; a query without a
result, such as a latency while nobody calls, counts as 0.
*/}}

{{/* baton.signals (list $ "prefill"): a YAML list of {name, query, target, type} */}}
{{- define "baton.signals" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
{{- range $name, $each := (index $.Values.autoscaling $component).signals }}
{{- if $each.target }}
{{- $query := $each.query | replace "NAMESPACE" $.Release.Namespace | replace "WINDOW" $.Values.autoscaling.window }}
- name: {{ printf "baton_%s_%s" $component (snakecase $name) }}
  query: {{ printf "((%s) >= 0) or vector(0)" $query | quote }}
  target: {{ $each.target | quote }}
  type: {{ $each.type }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "baton.target" -}}
apiVersion: apps/v1
kind: {{ ternary "Deployment" "StatefulSet" (eq (index . 1) "gateway") }}
name: {{ include "baton.component" . }}
{{- end -}}

{{/* Up at once, down one pod a minute and only after five quiet minutes: a worker that leaves takes its cache along. */}}
{{- define "baton.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 30}
    - {type: Pods, value: 2, periodSeconds: 30}
  selectPolicy: Max
scaleDown:
  stabilizationWindowSeconds: 300
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end -}}
