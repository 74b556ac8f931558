{{/*
Several models behind the gateways. `model` is the first one; each entry of `models` is a further one with workers of its
own. Their components are called NAME-prefill and NAME-decode, and take every value that they do not set from `prefill`
and `decode`. The settings file lists all models; each worker chooses its own by BATON_MODEL.
*/}}

{{/* baton.workers $: the components that are workers, as a YAML list */}}
{{- define "baton.workers" -}}
- prefill
- decode
{{- range $name, $_ := .Values.models }}
- {{ $name }}-prefill
- {{ $name }}-decode
{{- end }}
{{- end -}}

{{/* baton.tier "small-prefill": prefill; a component that is no worker is its own tier */}}
{{- define "baton.tier" -}}
{{- regexReplaceAll "^.*-" . "" -}}
{{- end -}}

{{/* baton.ofModel "small-prefill": small; empty: the first model, or no worker */}}
{{- define "baton.ofModel" -}}
{{- if contains "-" . }}{{ regexReplaceAll "-[a-z]+$" . "" }}{{ end -}}
{{- end -}}

{{/* baton.sibling (list "small-prefill" "decode"): the same model's other tier, small-decode */}}
{{- define "baton.sibling" -}}
{{- $model := include "baton.ofModel" (index . 0) -}}
{{- ternary (printf "%s-%s" $model (index . 1)) (index . 1) (ne $model "") -}}
{{- end -}}

{{/* baton.overlaid (list BASE OWN): BASE with the keys of OWN; groups of two keys key by key, all else as a whole */}}
{{- define "baton.overlaid" -}}
{{- $values := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- if has $key (list "gpu" "rdma" "disruption" "signals") -}}
{{- range $inner, $each := $value }}{{ $_ := set (index $values $key) $inner $each }}{{ end -}}
{{- else }}{{ $_ := set $values $key $value }}{{ end -}}
{{- end -}}
{{- toYaml $values -}}
{{- end -}}

{{/* baton.values (list $ "small-prefill"): the values of a component, as YAML */}}
{{- define "baton.values" -}}
{{- $ := index . 0 -}}{{- $tier := include "baton.tier" (index . 1) -}}
{{- $own := dig (include "baton.ofModel" (index . 1)) $tier dict $.Values.models -}}
{{- include "baton.overlaid" (list (index $.Values $tier) $own) -}}
{{- end -}}

{{/* baton.scaling (list $ "small-prefill"): its values below `autoscaling`, as YAML */}}
{{- define "baton.scaling" -}}
{{- $ := index . 0 -}}{{- $tier := include "baton.tier" (index . 1) -}}
{{- $own := dig (include "baton.ofModel" (index . 1)) "autoscaling" $tier dict $.Values.models -}}
{{- include "baton.overlaid" (list (index $.Values.autoscaling $tier) $own) -}}
{{- end -}}

{{/* baton.model (list $ "small"): path, draftPath, servedName and settings of a model, as YAML */}}
{{- define "baton.model" -}}
{{- $ := index . 0 -}}
{{- toYaml (ternary $.Values.model (dig (index . 1) dict $.Values.models) (eq (index . 1) "")) -}}
{{- end -}}

{{/* baton.adapters (list $ "small"): name and folder of each of a model's adapters, as YAML */}}
{{- define "baton.adapters" -}}
{{- $ := index . 0 -}}
{{- toYaml (ternary $.Values.adapters.folders (dig (index . 1) "adapters" dict $.Values.models) (eq (index . 1) "")) -}}
{{- end -}}

{{/* baton.modelName (list $ "small"): the name in metrics, the first that clients may write */}}
{{- define "baton.modelName" -}}
{{- $model := include "baton.model" . | fromYaml -}}
{{- with $model.servedName }}{{ splitList "," . | first | trim }}{{ else }}{{ empty $model.path | ternary "baton-tiny" (base $model.path) }}{{ end -}}
{{- end -}}

{{/* baton.modelTable (list $ "small"): its table [[models]] in the settings file */}}
{{- define "baton.modelTable" -}}
{{- $model := include "baton.model" . | fromYaml }}

[[models]]
model = {{ $model.path | quote }}
{{- with $model.servedName }}
served_name = [{{ range $i, $name := splitList "," . }}{{ if $i }}, {{ end }}{{ trim $name | quote }}{{ end }}]
{{- end }}
{{- with $model.draftPath }}
draft = {{ . | quote }}
{{- end }}
{{- with include "baton.adapters" . | fromYaml }}
{{- $pairs := list }}
{{- range $name, $folder := . }}{{ $pairs = append $pairs (printf "%s = %s" ($name | quote) ($folder | quote)) }}{{ end }}
adapters = { {{- join ", " $pairs -}} }
{{- end }}
{{- range $key, $value := $model.settings }}
{{ $key }} = {{ include "baton.toml" (list $value) }}
{{- end }}
{{- end -}}

{{/* baton.modelTables $: all of them; empty while there is one model, which BATON_MODEL names then */}}
{{- define "baton.modelTables" -}}
{{- if .Values.models }}
{{- include "baton.modelTable" (list . "") }}
{{- range $name, $_ := .Values.models }}
{{- include "baton.modelTable" (list $ $name) }}
{{- end }}
{{- end }}
{{- end -}}
