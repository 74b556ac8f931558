{{/*
What the pods of all three components share: who they run as, where they run, what they mount, how they are probed.
*/}}

{{/* baton.podSpec (list $ "prefill"): the fields of a pod's spec besides containers, volumes and grace period */}}
{{- define "baton.podSpec" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}{{- $values := include "baton.values" . | fromYaml -}}
serviceAccountName: {{ include "baton.component" . }}
automountServiceAccountToken: false
enableServiceLinks: false # else Kubernetes adds BATON_* variables of its own
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $.Values.user }}
  runAsGroup: {{ $.Values.user }}
  fsGroup: {{ $.Values.user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
  {{- if ne $component "gateway" }}
  sysctls: # pages arrive on a port that the system picks from this range; the network policies open it
    - name: net.ipv4.ip_local_port_range
      value: {{ printf "%v %v" $.Values.ports.pagesFirst $.Values.ports.pagesLast | quote }}
  {{- end }}
{{- with $.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range $.Values.topologySpread }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- include "baton.selector" (list $ $component) | nindent 8 }}
  {{- end }}
{{- end -}}

{{/* baton.podLabels (list $ "prefill"): without the chart's version, so that a new chart alone moves no pod */}}
{{- define "baton.podLabels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/part-of: baton
{{- with (include "baton.values" . | fromYaml).podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* baton.container (list $ "prefill"): security, resources and mounts of a service's container */}}
{{- define "baton.container" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}{{- $values := include "baton.values" . | fromYaml -}}
image: {{ include "baton.image" $ }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- if (dig "rdma" "count" 0 $values) }}
    add: [IPC_LOCK] # memory that an RDMA card reads is locked
    {{- end }}
resources: {{- include "baton.resources" . | nindent 2 }}
volumeMounts:
  - {name: settings, mountPath: /etc/baton, readOnly: true}
  - {name: cache, mountPath: /var/cache/baton}
  - {name: tmp, mountPath: /tmp}
  {{- if $.Values.model.claimName }}
  - {name: model, mountPath: /models, readOnly: true}
  {{- else if $.Values.model.image }}
  - {name: model, mountPath: /models, readOnly: true}
  {{- end }}
  {{- if or $.Values.adapters.claimName $.Values.adapters.image }}
  - {name: adapters, mountPath: /adapters, readOnly: true}
  {{- end }}
  {{- if ne $.Values.security.mode "plain" }}
  {{- include "baton.certificateMount" $ | nindent 2 }}
  {{- else }}
  - {name: mesh-token, mountPath: /mesh-token, readOnly: true}
  {{- end }}
  {{- if and (eq $component "gateway") $.Values.keys.secretName }}
  - {name: keys, mountPath: /keys, readOnly: true}
  {{- end }}
  {{- if (dig "gpu" "count" 0 $values) }}
  - {name: shared-memory, mountPath: /dev/shm}
  {{- end }}
{{- end -}}

{{/* Devices are limits that equal requests; the rest is as the values say. */}}
{{- define "baton.resources" -}}
{{- $values := include "baton.values" . | fromYaml -}}
{{- $limits := dict -}}
{{- range (list (dig "gpu" dict $values) (dig "rdma" dict $values)) -}}
{{- if .count -}}{{- $limits = set $limits .resource (int .count) -}}{{- end -}}
{{- end -}}
{{- $resources := deepCopy $values.resources -}}
{{- if $limits -}}
{{- $resources = mergeOverwrite $resources (dict "limits" $limits "requests" $limits) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "baton.volumes" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}{{- $values := include "baton.values" . | fromYaml -}}
- name: settings
  configMap: {name: {{ include "baton.component" (list $ "settings") }}}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- if ne $component "edge" }}
- name: cache
  {{- if and (ne $component "gateway") $.Values.cache.claimName }}
  persistentVolumeClaim: {claimName: {{ $.Values.cache.claimName }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ $.Values.cache.size }}}
  {{- end }}
{{- end }}
{{- if eq $component "edge" }}
{{- else if $.Values.model.claimName }}
- name: model
  persistentVolumeClaim: {claimName: {{ $.Values.model.claimName }}, readOnly: true}
{{- else if $.Values.model.image }}
- name: model # the files of an OCI image, mounted as they are
  image: {reference: {{ $.Values.model.image | quote }}, pullPolicy: IfNotPresent}
{{- end }}
{{- if eq $component "edge" }}
{{- else if $.Values.adapters.claimName }}
- name: adapters
  persistentVolumeClaim: {claimName: {{ $.Values.adapters.claimName }}, readOnly: true}
{{- else if $.Values.adapters.image }}
- name: adapters
  image: {reference: {{ $.Values.adapters.image | quote }}, pullPolicy: IfNotPresent}
{{- end }}
{{- if ne $.Values.security.mode "plain" }}
{{ include "baton.certificateVolume" . }}
{{- else }}
- name: mesh-token # the key `token`: what the services show each other
  secret:
    secretName: {{ $.Values.security.meshTokenSecret | default (include "baton.component" (list $ "mesh-token")) }}
    defaultMode: 0440
{{- end }}
{{- if and (eq $component "gateway") $.Values.keys.secretName }}
- name: keys # the key `keys.txt`: names, hashes and limits of the tenants; a change of it reaches the gateway as it runs
  secret: {secretName: {{ $.Values.keys.secretName }}, defaultMode: 0440}
{{- end }}
{{- if eq $.Values.security.mode "sidecar" }}
- name: envoy
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end }}
{{- if (dig "gpu" "count" 0 $values) }}
- name: shared-memory # NCCL's, between its own threads
  emptyDir: {medium: Memory, sizeLimit: 1Gi}
{{- end }}
{{- end -}}

{{/* baton.annotations (list $ "prefill"): a pod starts anew when its settings change, a worker not for another model's */}}
{{- define "baton.annotations" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
{{- $models := include "baton.modelTables" $ -}}
{{- if and $models (has $component (include "baton.workers" $ | fromYamlArray)) -}}
{{- $models = include "baton.modelTable" (list $ (include "baton.ofModel" $component)) -}}
{{- end -}}
baton/settings: {{ printf "%s%s" (include "baton.commonFile" $) $models | sha256sum | trunc 16 }}
{{- with (include "baton.values" . | fromYaml).podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}
