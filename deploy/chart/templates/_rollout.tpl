{{/*
A roll-out that keeps the ratio of the tiers. Old and new workers pair only if they compute the same bits, so a tier that
is ahead of the other has nobody to hand pages to. `rollout.percent` moves the same share of both tiers of every model:
workers with an ordinal below the partition keep the old version.
*/}}

{{/* baton.partition (list $ "prefill"): how many workers stay as they are; at least one of each tier moves */}}
{{- define "baton.partition" -}}
{{- $ := index . 0 -}}
{{- $count := int (include "baton.count" .) -}}
{{- $moved := ceil (divf (mulf $count $.Values.rollout.percent) 100) | int -}}
{{- if and (eq $moved 0) (gt (int $.Values.rollout.percent) 0) -}}{{- $moved = 1 -}}{{- end -}}
{{- max 0 (sub $count $moved) -}}
{{- end -}}

{{/* baton.count (list $ "prefill"): how many workers there are now. Under an autoscaler the cluster knows. */}}
{{- define "baton.count" -}}
{{- $ := index . 0 -}}
{{- if eq $.Values.autoscaling.engine "none" -}}
{{- (include "baton.values" . | fromYaml).replicas -}}
{{- else -}}
{{- $live := lookup "apps/v1" "StatefulSet" $.Release.Namespace (include "baton.component" .) -}}
{{- dig "spec" "replicas" (include "baton.scaling" . | fromYaml).min $live -}}
{{- end -}}
{{- end -}}
