(** * Compilation (T8)

    Patterns compile in preorder to structured code for a machine with a stack of subjects and a stack
    of frames.  The code keeps the answers and their order, for every pattern. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine.

(** ** Code *)

Section Code.
Context {Δ : Domain}.

Inductive instr : Type :=
| IVar (x : name)                       (** pop a subject; bind or compare *)
| IOp (f : op) (n : nat)                (** pop a subject; push its [n] children *)
| IFun (F : name) (n : nat)             (** the same, binding the operator *)
| IAlt (c1 c2 : list instr)             (** try [c1], then [c2] *)
| IEx (x : name)                        (** push a frame with a fresh local name *)
| IEnd (x : name)                       (** the local name must be bound; pop the frame *)
| IGuard (g : guard)
| ILet (x : name) (e : expr)
| ILoad (x : name)                      (** push the term that a name stands for *)
| IMu (xs : list name) (c : list instr) (ys : list name)   (** enter a recursive pattern *)
| ICall (i : nat) (ys : list name)      (** enter an enclosing one *)
| IRet.                                 (** pop the frame *)

Definition code : Type := list instr.

Fixpoint compile (p : pattern) : code :=
  match p with
  | PVar x => [IVar x]
  | POp f ps => IOp f (length ps) :: flat_map compile ps
  | PFun F ps => IFun F (length ps) :: flat_map compile ps
  | PAlt p q => [IAlt (compile p) (compile q)]
  | PEx x p => IEx x :: compile p ++ [IEnd x]
  | PGuard p g => compile p ++ [IGuard g]
  | PLet p x e => compile p ++ [ILet x e]
  | PMatch p p' x => compile p ++ ILoad x :: compile p'
  | PMu xs _ _ _ b ys => [IMu xs (compile b) ys]
  | PCall i ys => [ICall i ys]
  end.

(** *** The code is linear in the pattern *)

Fixpoint instr_size (i : instr) : nat :=
  match i with
  | IAlt c1 c2 => 1 + list_sum (map instr_size c1) + list_sum (map instr_size c2)
  | IMu _ c _ => 1 + list_sum (map instr_size c)
  | _ => 1
  end.

Definition code_size (c : code) : nat := list_sum (map instr_size c).

Fixpoint pattern_size (p : pattern) : nat :=
  match p with
  | PVar _ | PCall _ _ => 1
  | POp _ ps | PFun _ ps => 1 + list_sum (map pattern_size ps)
  | PAlt p q | PMatch p q _ => 1 + pattern_size p + pattern_size q
  | PEx _ p | PGuard p _ | PLet p _ _ | PMu _ _ _ _ p _ => 1 + pattern_size p
  end.

Lemma code_size_app c d : code_size (c ++ d) = code_size c + code_size d.
Proof. unfold code_size. now rewrite map_app, list_sum_app. Qed.

Lemma code_size_children ps :
  Forall (fun p => code_size (compile p) <= 2 * pattern_size p) ps ->
  code_size (flat_map compile ps) <= 2 * list_sum (map pattern_size ps).
Proof.
  induction 1 as [| p ps Hp _ IH]; simpl; auto. rewrite code_size_app. lia.
Qed.

Theorem compile_linear p : code_size (compile p) <= 2 * pattern_size p.
Proof.
  induction p using pattern_ind'; simpl; rewrite ?code_size_app; unfold code_size in *; simpl in *;
    try lia.
  - apply code_size_children in H. unfold code_size in H. lia.
  - apply code_size_children in H. unfold code_size in H. lia.
  - rewrite map_app, list_sum_app. simpl. lia.
Qed.
End Code.

(** ** The machine *)

Section VM.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** A frame: the enclosing recursive patterns, compiled, and the location map. *)
Definition frame : Type := list (list name * code) * locs.

Record vm_config : Type := VM {
  vm_store : store T;
  vm_subjects : list T;
  vm_frames : list frame;
  vm_code : code
}.

(** The instructions that need the current frame [(R, ρ)]; [F] are the frames below, [c] is the
    code after the instruction. *)
Definition do_instr (σ : store T) (K : list T) (R : list (list name * code)) (ρ : locs)
    (F : list frame) (i : instr) (c : code) : list vm_config :=
  let go K o := match o with Some σ => [VM σ K ((R, ρ) :: F) c] | None => [] end in
  match i, K with
  | IVar x, t :: K => go K (bind_name σ ρ x (VTerm t))
  | IOp f n, t :: K =>
      let (g, ts) := dest t in
      if Nat.eqb f g && Nat.eqb n (length ts) then go (ts ++ K) (Some σ) else []
  | IFun x n, t :: K =>
      let (f, ts) := dest t in
      if Nat.eqb n (length ts) then go (ts ++ K) (bind_name σ ρ x (VOp f)) else []
  | IAlt c1 c2, _ => [VM σ K ((R, ρ) :: F) (c1 ++ c); VM σ K ((R, ρ) :: F) (c2 ++ c)]
  | IEx x, _ =>
      [VM (alloc σ) K ((R, update ρ x (LFresh (next σ))) :: (R, ρ) :: F) c]
  | IEnd x, _ =>
      match (get σ ∘ ρ) x with
      | Some _ => [VM σ K F c]
      | None => []
      end
  | IGuard g, _ =>
      match geval (get σ ∘ ρ) g with
      | Some true => go K (Some σ)
      | _ => []
      end
  | ILet x e, _ =>
      match eval (get σ ∘ ρ) e with
      | Some v => go K (bind_name σ ρ x v)
      | None => []
      end
  | ILoad x, _ =>
      match (get σ ∘ ρ) x with
      | Some (VTerm t) => go (t :: K) (Some σ)
      | _ => []
      end
  | IMu xs b ys, _ =>
      [VM σ K (((xs, b) :: R, callenv xs ys ρ) :: (R, ρ) :: F) (b ++ IRet :: c)]
  | ICall i ys, _ =>
      match skipn i R with
      | (xs, b) :: R' => [VM σ K (((xs, b) :: R', callenv xs ys ρ) :: (R, ρ) :: F) (b ++ IRet :: c)]
      | [] => []
      end
  | IRet, _ => [VM σ K F c]
  | _, _ => []
  end.

Definition vm_expand (v : vm_config) : list vm_config :=
  match v with
  | VM σ K ((R, ρ) :: F) (i :: c) => do_instr σ K R ρ F i c
  | _ => []
  end.

(** The run that collects all answers.  A configuration without code is a success. *)
Inductive vm_answers : list vm_config -> list (store T) -> Prop :=
| vm_failure : vm_answers [] []
| vm_success σ K F stk o : vm_answers stk o -> vm_answers (VM σ K F [] :: stk) (σ :: o)
| vm_step σ K F i c stk o :
    vm_answers (vm_expand (VM σ K F (i :: c)) ++ stk) o ->
    vm_answers (VM σ K F (i :: c) :: stk) o.

Definition vm_init (p : pattern) (t : T) : list vm_config := [VM empty [t] [([], ρ0)] (compile p)].

Theorem vm_deterministic st o1 o2 : vm_answers st o1 -> vm_answers st o2 -> o1 = o2.
Proof.
  intros H. revert o2. induction H; intros o2 H2; inversion H2; subst; auto. f_equal; auto.
Qed.

(** A fuelled version that computes. *)
Fixpoint vm_run (n : nat) (st : list vm_config) : option (list (store T)) :=
  match n with
  | 0 => None
  | S n =>
      match st with
      | [] => Some []
      | VM σ _ _ [] :: stk => option_map (cons σ) (vm_run n stk)
      | v :: stk => vm_run n (vm_expand v ++ stk)
      end
  end.

Theorem vm_run_sound n st o : vm_run n st = Some o -> vm_answers st o.
Proof.
  revert st o. induction n as [| n IH]; intros st o H; [discriminate |].
  destruct st as [| [σ K F [| i c]] stk]; simpl in H.
  - injection H as <-. constructor.
  - destruct (vm_run n stk) as [o' |] eqn:E; [| discriminate]. injection H as <-.
    constructor. auto.
  - apply vm_step. auto.
Qed.

Theorem vm_run_complete st o : vm_answers st o -> exists n, vm_run n st = Some o.
Proof.
  induction 1 as [| σ K F stk o _ [n IH] | σ K F i c stk o _ [n IH]].
  - now exists 1.
  - exists (S n). simpl. now rewrite IH.
  - exists (S n). exact IH.
Qed.

(** ** The relation between code and actions *)

Definition compile_rec (R : recursion) : list (list name * code) :=
  map (fun d => (d_params d, compile (d_body d))) R.

(** [decodes c K F k]: with the subjects [K] and the frames [F], the code [c] does the actions [k]. *)
Inductive decodes : code -> list T -> list frame -> list (action T) -> Prop :=
| D_nil K F :
    decodes [] K F []
| D_match R ρ p t c K F k :
    decodes c K ((compile_rec R, ρ) :: F) k ->
    decodes (compile p ++ c) (t :: K) ((compile_rec R, ρ) :: F) (AMatch R ρ p t :: k)
| D_guard R ρ g c K F k :
    decodes c K ((R, ρ) :: F) k ->
    decodes (IGuard g :: c) K ((R, ρ) :: F) (AGuard ρ g :: k)
| D_let R ρ x e c K F k :
    decodes c K ((R, ρ) :: F) k ->
    decodes (ILet x e :: c) K ((R, ρ) :: F) (ALet ρ x e :: k)
| D_end R ρ x l c K F k :
    ρ x = Some l -> decodes c K F k ->
    decodes (IEnd x :: c) K ((R, ρ) :: F) (ACheck l :: k)
| D_load R ρ x p c K F k :
    decodes c K ((compile_rec R, ρ) :: F) k ->
    decodes (ILoad x :: compile p ++ c) K ((compile_rec R, ρ) :: F) (AMatchC R ρ p x :: k)
| D_ret R ρ c K F k :
    decodes c K F k ->
    decodes (IRet :: c) K ((R, ρ) :: F) k.

Definition runs (v : vm_config) (c : config T) : Prop :=
  vm_store v = fst c /\ decodes (vm_code v) (vm_subjects v) (vm_frames v) (snd c).

Lemma runs_intro σ K F c k : decodes c K F k -> runs (VM σ K F c) (σ, k).
Proof. intros H. now split. Qed.

(** Code does not begin with a return, unless it decodes to one. *)
Definition not_return (c : code) : Prop :=
  match c with
  | IRet :: _ => False
  | _ => True
  end.

Lemma compile_not_return p : forall c, not_return (compile p ++ c).
Proof.
  induction p using pattern_ind'; intros c0; simpl; auto; rewrite <- app_assoc; auto.
Qed.

(** A return is a step of the virtual machine alone; after finitely many there is none. *)
Lemma skip_returns c K F k :
  decodes c K F k -> forall σ stk o,
  (forall c' K' F', decodes c' K' F' k -> not_return c' -> vm_answers (VM σ K' F' c' :: stk) o) ->
  vm_answers (VM σ K F c :: stk) o.
Proof.
  induction 1; intros σ stk o H'; try (apply H'; [constructor; auto | exact I]).
  - apply H'; [now constructor | apply compile_not_return].
  - apply vm_step. simpl. auto.
Qed.

Lemma decodes_children R ρ c K F k ps :
  decodes c K ((compile_rec R, ρ) :: F) k -> forall ts, length ps = length ts ->
  decodes (flat_map compile ps ++ c) (ts ++ K) ((compile_rec R, ρ) :: F)
          (match_children R ρ ps ts ++ k).
Proof.
  intros H. induction ps as [| p ps IH]; intros [| t ts] L; try discriminate; simpl; auto.
  rewrite <- app_assoc. constructor. auto.
Qed.

(** ** Lock-step, up to steps of one machine alone

    A step of an action is either a step of code, or it only splits the action, and the same code
    decodes to the result. *)

Definition only_splits (a : action T) : bool :=
  match a with
  | AMatch _ _ (PGuard _ _ | PLet _ _ _ | PMatch _ _ _) _ => true
  | _ => false
  end.

Lemma runs_continue K F c k o :
  decodes c K F k ->
  Forall2 runs (match o with Some σ => [VM σ K F c] | None => [] end) (continue k o).
Proof. intros H. destruct o; simpl; repeat constructor; auto. Qed.

Ltac step_code := split; [discriminate |]; simpl.

Lemma simulate σ K F c a k :
  decodes c K F (a :: k) -> not_return c -> only_splits a = false ->
  c <> [] /\ Forall2 runs (vm_expand (VM σ K F c)) (do_action σ a k).
Proof.
  intros H N Sp. inversion H; subst; simpl in N; try tauto.
  - (* match *) match goal with D : decodes _ _ _ k |- _ => rename D into H' end. clear H N.
    destruct p as [x | f ps | G ps | p q | x p | p g | p x e | p p' x
                  | xs ins outs small b ys | i ys]; try discriminate Sp; step_code.
    + (* var *) now apply runs_continue.
    + (* op *) destruct (dest t) as [g ts]. destruct (_ && _) eqn:Q; [| constructor].
      apply andb_prop in Q as [_ Q]. apply Nat.eqb_eq in Q.
      apply (runs_continue _ _ _ _ (Some σ)). now apply decodes_children.
    + (* fun *) destruct (dest t) as [f ts]. destruct (Nat.eqb _ _) eqn:Q; [| constructor].
      apply Nat.eqb_eq in Q. apply runs_continue. now apply decodes_children.
    + (* alt *) repeat (constructor; [now apply runs_intro, D_match |]). constructor.
    + (* ex *) constructor; [| constructor]. apply runs_intro. rewrite <- app_assoc.
      apply (D_match R (update ρ x (LFresh (next σ)))). apply D_end; auto. apply update_same.
    + (* mu *) constructor; [| constructor]. apply runs_intro.
      apply (D_match (Def xs ins outs small b :: R)). now apply D_ret.
    + (* call *) unfold compile_rec. rewrite skipn_map.
      destruct (skipn i R) as [| d R']; [constructor |]. simpl. constructor; [| constructor].
      apply runs_intro. apply (D_match (d :: R')). now apply D_ret.
  - (* test *) step_code. destruct (geval _ g) as [[] |]; repeat constructor; auto.
  - (* assign *) step_code. destruct (eval _ e); [now apply runs_continue | constructor].
  - (* check *) step_code. unfold compose.
    match goal with E : _ x = Some l |- _ => rewrite E end.
    destruct (get σ l); repeat constructor; auto.
  - (* constraint *) step_code. destruct ((get σ ∘ ρ) x) as [[t | | |] |]; try constructor.
    + now apply runs_intro, D_match.
    + constructor.
Qed.

Lemma split_step σ K F c a k :
  decodes c K F (a :: k) -> not_return c -> only_splits a = true ->
  exists k', do_action σ a k = [(σ, k')] /\ decodes c K F k'.
Proof.
  intros H N Sp. inversion H; subst; try discriminate Sp.
  - destruct p; try discriminate Sp; eexists; (split; [reflexivity |]); simpl;
      rewrite <- app_assoc; apply D_match; now constructor.
  - simpl in N. tauto.
Qed.

(** ** T8 *)

Lemma compile_answers_gen (st : state T) o :
  st ⇓ o -> forall vst, Forall2 runs vst st -> vm_answers vst o.
Proof.
  induction 1 as [| σ stk o _ IH | st o Run _ IH]; intros vst H.
  - inversion H. constructor.
  - inversion H as [| [σ' K F c] ? vst' ? [E D] H']; subst. simpl in E, D. subst.
    eapply skip_returns; eauto. intros c' K' F' D' N.
    inversion D'; subst; simpl in N; try tauto. constructor. auto.
  - destruct st as [| [σ [| a k]] stk]; try discriminate.
    inversion H as [| [σ' K F c] ? vst' ? [E D] H']; subst. simpl in E, D. subst.
    eapply skip_returns; eauto. intros c' K' F' D' N.
    destruct (only_splits a) eqn:Sp.
    + destruct (split_step σ K' F' c' a k D' N Sp) as (k' & E & HR). apply IH. simpl. rewrite E.
      constructor; auto. now apply runs_intro.
    + destruct (simulate σ K' F' c' a k D' N Sp) as [NE HR].
      destruct c' as [| i c']; [now destruct NE |]. apply vm_step. apply IH. simpl.
      now apply Forall2_app.
Qed.

Theorem compile_answers p t o : init p t ⇓ o -> vm_answers (vm_init p t) o.
Proof.
  intros H. apply (compile_answers_gen _ _ H). constructor; [| constructor].
  apply runs_intro. rewrite <- (app_nil_r (compile p)). apply (D_match []), D_nil.
Qed.
End VM.
