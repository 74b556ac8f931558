{{/*
Settings of the services. The values under `config` become baton.toml as they are; what the chart decides (addresses,
names, files) comes as BATON_* variables, which win over the file.
*/}}

{{/* baton.toml (list value): one TOML value. Helm reads every number as a float; whole numbers are written as such. */}}
{{- define "baton.toml" -}}
{{- $value := index . 0 -}}
{{- if kindIs "float64" $value -}}
{{- if eq (float64 (int64 $value)) $value -}}{{ int64 $value }}{{- else -}}{{ $value }}{{- end -}}
{{- else if kindIs "slice" $value -}}
[{{- range $i, $each := $value }}{{ if $i }}, {{ end }}{{ include "baton.toml" (list $each) }}{{ end -}}]
{{- else if kindIs "string" $value -}}
{{ $value | quote }}
{{- else -}}
{{ $value }}
{{- end -}}
{{- end -}}

{{/* baton.file $: the text of baton.toml: top-level keys, models, sections */}}
{{- define "baton.file" -}}
{{- include "baton.topFile" . }}
{{- include "baton.modelTables" . }}
{{- include "baton.sectionsFile" . }}
{{- end -}}

{{/* baton.commonFile $: what of it holds for every model */}}
{{- define "baton.commonFile" -}}
{{- include "baton.topFile" . }}
{{- include "baton.sectionsFile" . }}
{{- end -}}

{{- define "baton.topFile" -}}
{{- range $key, $value := .Values.config }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "baton.toml" (list $value) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "baton.sectionsFile" -}}
{{- range $section, $keys := .Values.config }}
{{- if kindIs "map" $keys }}

[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "baton.toml" (list $value) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* baton.identityVariable "prefill": the last part of the process's identity; gateways share one, and so do edges */}}
{{- define "baton.identityVariable" -}}
- name: IDENTITY
{{- if has . (list "gateway" "edge") }}
  value: {{ . }}
{{- else }}
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- end -}}

{{/* baton.componentEnvironment (list $ "prefill"): all variables of a component's service */}}
{{- define "baton.componentEnvironment" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
{{ include "baton.environment" $ }}
{{- if ne $.Values.security.mode "plain" }}
{{ include "baton.identityVariable" $component }}
{{- end }}
{{- if has $component (include "baton.workers" $ | fromYamlArray) }}
{{ include "baton.workerEnvironment" . }}
{{- else if eq $component "gateway" }}
{{ include "baton.gatewayEnvironment" $ }}
{{- end }}
{{- if and $.Values.otlpEndpoint (has $component (list "gateway" "edge")) }}
- name: BATON_OTLP_ENDPOINT
  value: {{ $.Values.otlpEndpoint | quote }}
{{- end }}
{{- with (include "baton.values" . | fromYaml).env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "baton.gatewayEnvironment" -}}
- name: BATON_NAME
  value: $(POD_NAME)
- name: BATON_GATEWAY_HTTP_ADDRESS
  value: {{ printf "%s:%v" (include "baton.listen" .) .Values.ports.http | quote }}
- name: BATON_GATEWAY_GRPC_ADDRESS
  value: {{ printf "%s:%v" (include "baton.listen" .) (include "baton.ownPort" (list . "gateway")) | quote }}
- name: BATON_GATEWAY_WORKER_ADDRESS
  value: {{ printf "%s:%v" (include "baton.listen" .) .Values.ports.registry | quote }}
{{- if .Values.keys.secretName }}
- name: BATON_GATEWAY_KEYS_FILE
  value: /keys/keys.txt
{{- end }}
{{- end -}}

{{/* baton.environment $: variables of every service */}}
{{- define "baton.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: BATON_CACHE_FOLDER
  value: /var/cache/baton
{{- if not .Values.models }}
{{- with .Values.model.path }}
- name: BATON_MODEL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.model.draftPath }}
- name: BATON_DRAFT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.model.servedName }}
- name: BATON_SERVED_NAME
  value: {{ . | quote }}
{{- end }}
{{- with .Values.adapters.folders }}
{{- $pairs := list }}
{{- range $name, $folder := . }}{{ $pairs = append $pairs (printf "%s=%s" $name $folder) }}{{ end }}
- name: BATON_ADAPTERS
  value: {{ join "," $pairs | quote }}
{{- end }}
{{- end }}
{{- if eq .Values.security.mode "sidecar" }}
- name: BATON_SIDECAR # this pod's Envoy takes every gRPC call to a peer; pages go past it, with TLS of their own
  value: {{ printf "127.0.0.1:%v" .Values.ports.sidecar | quote }}
{{- end }}
{{- if eq .Values.security.mode "plain" }}
- name: BATON_MESH_TOKEN_FILE
  value: /mesh-token/token
{{- end }}
{{- if ne .Values.security.mode "plain" }}
- name: BATON_TLS_CERTIFICATE
  value: /tls/tls.crt
- name: BATON_TLS_KEY
  value: /tls/tls.key
- name: BATON_TLS_CA
  value: /tls/ca.crt
- name: BATON_TLS_NAME
  value: {{ .Values.security.tlsName | quote }}
{{- end }}
{{- end -}}

{{/* baton.workerEnvironment (list $ "prefill"): what a worker needs besides */}}
{{- define "baton.workerEnvironment" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}{{- $tier := include "baton.tier" $component -}}
{{- $values := include "baton.values" . | fromYaml -}}
{{- $prefix := printf "BATON_%s" (upper $tier) -}}
- name: BATON_NAME
  value: $(POD_NAME)
{{- if $.Values.models }}
- name: BATON_MODEL # which of the models in the file this worker loads
  value: {{ (include "baton.model" (list $ (include "baton.ofModel" $component)) | fromYaml).path | quote }}
{{- end }}
- name: {{ $prefix }}_ADDRESS
  value: {{ printf "%s:%v" (include "baton.listen" $) (include "baton.ownPort" .) | quote }}
{{- if eq $.Values.security.mode "sidecar" }}
- name: {{ $prefix }}_ADVERTISE_PORT
  value: {{ $.Values.ports.worker | quote }}
{{- end }}
- name: {{ $prefix }}_ADVERTISE_HOST
  value: $(POD_NAME).{{ include "baton.component" (list $ $component) }}.{{ include "baton.zone" $ }}
- name: {{ $prefix }}_GATEWAYS
  value: {{ include "baton.registry" $ | quote }}
- name: {{ $prefix }}_TRANSPORT_HOST
  value: "0.0.0.0"
- name: {{ $prefix }}_TRANSPORTS
  value: {{ ternary "nccl" "tcp" (gt (int $values.gpu.count) 0) }} # pods share no memory
- name: {{ $prefix }}_DEVICE
  value: {{ ternary "cuda" "cpu" (gt (int $values.gpu.count) 0) }}
{{- if eq $tier "decode" }}
- name: BATON_DECODE_MAY_KILL
  value: "false" # a pod sees no process of another pod
{{- end }}
{{- if $values.threads }}
- name: {{ $prefix }}_THREADS
  value: {{ $values.threads | quote }}
{{- else }}
- name: {{ $prefix }}_THREADS # not the node's cores, which the pod shares with others
  valueFrom: {resourceFieldRef: {containerName: {{ $tier }}, resource: requests.cpu, divisor: "1"}}
{{- end }}
{{- end -}}

{{/* Services behind an Envoy listen on loopback: nothing reaches them past it. */}}
{{- define "baton.listen" -}}
{{- ternary "127.0.0.1" "0.0.0.0" (eq .Values.security.mode "sidecar") -}}
{{- end -}}
