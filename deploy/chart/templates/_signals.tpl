{{/*
What the components scale on: what clients feel and what waits, never CPU (a worker that serves well is always busy).
Every signal is one Prometheus query. KEDA asks Prometheus itself; an HPA asks an adapter that has the same queries.

A further model has signals of its own. In a query MODEL is the model's name in metrics, WORKERS the names of the
component's pods, PREFILLS those of the model's prefill pods; `modelQuery` takes the place of `query` where there are several models, because the figures of
clients in the `baton_*` metrics count all models together. `vllm:num_requests_waiting` has those that wait in gateways,
and also those that wait in workers, which decode's signal takes out again: a queue of prefill's is no work for decode.

`type` is KEDA's and the HPA's: Value compares the figure with the target (pods × figure / target), AverageValue shares
the figure among the pods (figure / target). NAMESPACE and WINDOW are filled in here, too; a query without a
result, such as a latency while nobody calls, counts as 0.
*/}}

{{/* baton.signals (list $ "prefill"): a YAML list of {name, query, target, type} */}}
{{- define "baton.signals" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
{{- $name := include "baton.modelName" (list $ (include "baton.ofModel" $component)) -}}
{{- range $signal, $each := (include "baton.scaling" . | fromYaml).signals }}
{{- if $each.target }}
{{- $query := ternary $each.modelQuery $each.query (and (not (empty $.Values.models)) (not (empty $each.modelQuery))) }}
{{- $query = $query | replace "NAMESPACE" $.Release.Namespace | replace "WINDOW" $.Values.autoscaling.window }}
{{- $query = $query | replace "PREFILLS" (printf "%s-[0-9]+" (include "baton.component" (list $ (include "baton.sibling" (list $component "prefill"))))) }}
{{- $query = $query | replace "MODEL" $name | replace "WORKERS" (printf "%s-[0-9]+" (include "baton.component" (list $ $component))) }}
- name: {{ printf "baton_%s_%s" (replace "-" "_" $component) (snakecase $signal) }}
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
