{{/*
Combinations that a schema cannot refuse. Each message names the values and what to do.
*/}}
{{- define "baton.check" -}}
{{- if and .Values.model.claimName .Values.model.image -}}
{{- fail "model.claimName and model.image: both would be /models; set one" -}}
{{- end -}}
{{- if and .Values.model.path (not .Values.model.claimName) (not .Values.model.image) -}}
{{- fail "model.path: nothing is mounted at /models; set model.claimName or model.image" -}}
{{- end -}}
{{- if ge (int .Values.ports.pagesFirst) (int .Values.ports.pagesLast) -}}
{{- fail "ports.pagesFirst: is not below ports.pagesLast" -}}
{{- end -}}
{{- range $decode := include "baton.workers" . | fromYamlArray -}}
{{- if eq (include "baton.tier" $decode) "decode" -}}
{{- $gpu := gt (int (include "baton.values" (list $ $decode) | fromYaml).gpu.count) 0 -}}
{{- $prefill := include "baton.sibling" (list $decode "prefill") -}}
{{- if ne $gpu (gt (int (include "baton.values" (list $ $prefill) | fromYaml).gpu.count) 0) -}}
{{- fail (printf "gpu.count of %s and %s: pages go from one tier to the other, so both compute on GPUs or none" $prefill $decode) -}}
{{- end -}}
{{- if and $gpu (ne $.Values.security.mode "plain") -}}
{{- fail "security.mode: NCCL encrypts nothing, so it goes with mode plain on a network of your own only" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.models (not .Values.model.path) -}}
{{- fail "models: are beside the model that model.path names, and that is empty; the built-in model has no path" -}}
{{- end -}}
{{- $paths := dict .Values.model.path "model" -}}
{{- range $name, $model := .Values.models -}}
{{- with get $paths $model.path -}}
{{- fail (printf "models.%s.path: is the path of %s, too; give one model several names by servedName: a,b" $name .) -}}
{{- end -}}
{{- $_ := set $paths $model.path (printf "models.%s" $name) -}}
{{- end -}}
{{- include "baton.checkAdapters" . -}}
{{- include "baton.checkKeys" . -}}
{{- include "baton.checkGrace" . -}}
{{- if and (eq .Values.security.mode "sidecar") (not .Values.edge.tlsSecret) -}}
{{- fail "edge.tlsSecret: is missing; name the Secret (kubernetes.io/tls) whose certificate the edge shows to clients" -}}
{{- end -}}
{{- range $section, $keys := .Values.config -}}
{{- if and (kindIs "map" $keys) (not (has $section (list "gateway" "worker" "prefill" "decode"))) -}}
{{- fail (printf "config.%s: is no section; take gateway, worker, prefill or decode" $section) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Each folder of an adapter is mounted, and CPUs compute it. */}}
{{- define "baton.checkAdapters" -}}
{{- if and .Values.adapters.claimName .Values.adapters.image -}}
{{- fail "adapters.claimName and adapters.image: both would be /adapters; set one" -}}
{{- end -}}
{{- range $component := include "baton.workers" . | fromYamlArray -}}
{{- $model := include "baton.ofModel" $component -}}
{{- $value := ternary "adapters.folders" (printf "models.%s.adapters" $model) (eq $model "") -}}
{{- range $name, $folder := include "baton.adapters" (list $ $model) | fromYaml -}}
{{- $at := ternary "adapters" "model" (hasPrefix "/adapters/" $folder) -}}
{{- $volume := get $.Values $at -}}
{{- if not (or $volume.claimName $volume.image) -}}
{{- fail (printf "%s.%s: nothing is mounted at %s; set %s.claimName or %s.image" $value $name (ternary "/adapters" "/models" (eq $at "adapters")) $at $at) -}}
{{- end -}}
{{- if gt (int (include "baton.values" (list $ $component) | fromYaml).gpu.count) 0 -}}
{{- fail (printf "%s.%s: GPUs compute no adapters; set gpu.count of %s to 0, or serve the adapter merged into its model" $value $name $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* With keys every path asks for one, unless it is open. Probes show none. */}}
{{- define "baton.checkKeys" -}}
{{- if .Values.keys.secretName -}}
{{- $open := dig "gateway" "keys_open_paths" (list "/health" "/version") .Values.config -}}
{{- if kindIs "string" $open }}{{ $open = splitList "," $open }}{{ end -}}
{{- range $path := list "/health" "/version" -}}
{{- if not (has $path $open) -}}
{{- fail (printf "config.gateway.keys_open_paths: without %s Kubernetes could not probe the gateway; add it" $path) -}}
{{- end -}}
{{- end -}}
{{- if not (has "/metrics" $open) -}}
{{- if and .Values.monitoring.serviceMonitor.enabled (not .Values.monitoring.serviceMonitor.keySecret.name) -}}
{{- fail "monitoring.serviceMonitor.keySecret.name: /metrics asks for an operator's key; name the Secret that holds it, or add /metrics to config.gateway.keys_open_paths" -}}
{{- end -}}
{{- if .Values.inferencePool.enabled -}}
{{- fail "inferencePool.enabled: its picker reads /metrics without a key; add /metrics to config.gateway.keys_open_paths" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A worker that drains as long as it may must end by itself. */}}
{{- define "baton.checkGrace" -}}
{{- $common := dig "worker" "drain_seconds" 30 .Values.config -}}
{{- $longest := max (ceil (dig "prefill" "drain_seconds" $common .Values.config)) (ceil (dig "decode" "drain_seconds" $common .Values.config)) -}}
{{- if gt (add $longest 10) (int64 .Values.workerGraceSeconds) -}}
{{- fail (printf "workerGraceSeconds: %v is less than drain_seconds in config (%d) and 10 s to close sessions; set at least %d" .Values.workerGraceSeconds $longest (add $longest 10)) -}}
{{- end -}}
{{- end -}}
