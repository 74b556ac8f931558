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
{{- $gpu := gt (int .Values.decode.gpu.count) 0 -}}
{{- if ne $gpu (gt (int .Values.prefill.gpu.count) 0) -}}
{{- fail "prefill.gpu.count and decode.gpu.count: pages go from one tier to the other, so both compute on GPUs or none" -}}
{{- end -}}
{{- if and $gpu (ne .Values.security.mode "plain") -}}
{{- fail "security.mode: NCCL encrypts nothing, so it goes with mode plain on a network of your own only" -}}
{{- end -}}
{{- if and (eq .Values.security.mode "sidecar") (not .Values.edge.tlsSecret) -}}
{{- fail "edge.tlsSecret: is missing; name the Secret (kubernetes.io/tls) whose certificate the edge shows to clients" -}}
{{- end -}}
{{- range $section, $keys := .Values.config -}}
{{- if and (kindIs "map" $keys) (not (has $section (list "gateway" "worker" "prefill" "decode"))) -}}
{{- fail (printf "config.%s: is no section; take gateway, worker, prefill or decode" $section) -}}
{{- end -}}
{{- end -}}
{{- end -}}
